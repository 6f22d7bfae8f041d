// SPDX-License-Identifier: Apache-2.0
// Options of one command: a thin layer over CLI11 in which every message names the option, what was found and what is
// allowed. Requirements are checked after unknown options, so that a misspelt option is named and not the one it was
// meant to be.
#pragma once
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

/// The whole text as an integer; empty if it is anything else or does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// The whole text as a finite number, '.' whatever the locale; empty if it is anything else.
std::optional<double> parse_number(std::string_view text);

class Options {
 public:
  enum class Need { required, optional };

  explicit Options(CLI::App& app) : app_(app) {}

  /// Targets must outlive the parse. name: "--model", or "PATH" for a positional argument.
  void text(const std::string& name, std::string& target, const std::string& help, Need need = Need::optional);
  /// Empty where it is not given; "" is a text.
  void text(const std::string& name, std::optional<std::string>& target, const std::string& help);
  void path(const std::string& name, std::filesystem::path& target, const std::string& help,
            Need need = Need::optional);
  /// An integer in [low, high]; the target's value is shown as the default unless `shown` says otherwise.
  void integer(const std::string& name, std::int64_t& target, std::int64_t low, std::int64_t high,
               const std::string& help, const std::string& shown = "");
  void number(const std::string& name, double& target, double low, double high, const std::string& help);
  /// The same; given without a value: `low`. Empty where it is not given.
  void number_or_none(const std::string& name, std::optional<double>& target, double low, double high,
                      const std::string& help);
  /// One of `allowed`; set is called with the index.
  void choice(const std::string& name, std::vector<std::string> allowed, std::function<void(std::size_t)> set,
              const std::string& help);
  /// The value of one of the names; without `among` of all of the enum's: choice<E>(name, target, help). T: E or
  /// std::optional<E>.
  template <class E, class T>
  void choice(const std::string& name, T& target, const std::string& help,
              const EnumChoice<E>& among = choice_of<E>()) {
    std::vector<std::string> names;
    for (const auto& row : among) names.emplace_back(row.name);
    choice(name, std::move(names), [&target, among](std::size_t i) { target = among[i].value; }, help);
  }
  void flag(const std::string& name, bool& target, const std::string& help);
  /// One or more positional arguments.
  void paths(const std::string& name, std::vector<std::filesystem::path>& target, const std::string& help);
  /// May be given several times, one value each.
  void list(const std::string& name, std::vector<std::string>& target, const std::string& help);
  /// Arguments that are no options but mean something: target gets those that `accepts` takes, in their order.
  void rest(std::function<bool(std::string_view)> accepts, std::vector<std::string>& target);
  /// --json --device --dialect --dtype --threads --seed --load --quiet; the help leaves out what the command never
  /// reads. After its own options.
  void common(Context& context);

  /// A value that a file or the environment has for an option, in the words of the command line ("true" for a flag,
  /// which "false" leaves alone). After the parse: what the command line gives stays, and false is returned; of several
  /// files the last counts, and a list is the last file's. source: "run.yaml:3: trainer.max_steps". Throws io::Error
  /// naming it for a value that the option does not take.
  bool take(const std::string& name, const std::string& value, const std::string& source);
  bool take(const std::string& name, const std::vector<std::string>& values, const std::string& source);
  /// Where an option's value is from: "command line", take()'s source, or "default".
  std::string source_of(const std::string& name) const;

  /// Names of the options, and what the command line gives them: {"--steps", {"5"}}, of a flag {"true"}.
  std::vector<std::string> names() const;
  std::vector<std::pair<std::string, std::vector<std::string>>> given() const;
  /// The values that take() has left an option with.
  std::vector<std::string> taken(const std::string& name) const;
  bool is_list(const std::string& name) const { return lists_.contains(name); }
  /// What is shown as default in the help, where it is a value: integers and numbers.
  std::vector<std::pair<std::string, std::string>> defaults() const;

  /// After the parse: throws UsageError for what was not understood, then for a required option that is missing, then
  /// for a common option that the command does not read.
  void check();
  CLI::App& app() { return app_; }

 private:
  CLI::Option* add(const std::string& name, const std::string& type, std::function<void(const std::string&)> set,
                   const std::string& help);

  CLI::App& app_;
  std::vector<CLI::Option*> required_;
  std::function<bool(std::string_view)> accepts_;
  std::vector<std::string>* rest_ = nullptr;
  std::map<std::string, bool*> flags_;
  std::set<std::string> lists_;
  std::map<std::string, std::string> taken_;  ///< option, source
};

}  // namespace fp8::commands
