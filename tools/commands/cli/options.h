// SPDX-License-Identifier: Apache-2.0
// Options of one command: a thin layer over CLI11 in which every message names the option, what was found and what is
// allowed. Requirements are checked after unknown options, so that a misspelt option is named and not the one it was
// meant to be.
#pragma once
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <map>
#include <set>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {

/// The whole text as an integer; empty if it is anything else or does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// The whole text as a finite number, '.' whatever the locale; empty if it is anything else.
std::optional<double> parse_number(std::string_view text);

/// Throws UsageError: "--steps: found 'x', allowed: an integer from 1 on".
[[noreturn]] void bad_value(const std::string& name, const std::string& found, const std::string& allowed);

/// The group of options that the help leaves out. (Those of the group "" have no name in the messages of CLI11.)
inline constexpr char kHidden[] = "hidden";

/// The help of --overwrite.
inline constexpr char kOverwriteHelp[] = "Replace an output that is there already";

/// Throws UsageError: "train: MODEL or --init, --data and --out are required". command: "train"; names: not empty.
/// note: what follows, "" or " (...)".
[[noreturn]] void fail_missing(const std::string& command, const std::vector<std::string>& names,
                               const std::string& note = "");

class Options {
 public:
  enum class Need { required, optional };

  /// command: "measurements merge", where the app is called "merge".
  explicit Options(CLI::App& app, std::string command = "")
      : app_(app), command_(command.empty() ? app.get_name() : std::move(command)) {}

  /// Targets must outlive the parse. name: "--out", or "PATH" for a positional argument. A name that is shared
  /// (options.cpp has the table) has its short flag, too.
  void text(const std::string& name, std::string& target, const std::string& help, Need need = Need::optional);
  /// Empty where it is not given; "" is a text.
  void text(const std::string& name, std::optional<std::string>& target, const std::string& help);
  void path(const std::string& name, std::filesystem::path& target, io::Reach reach, const std::string& help,
            Need need = Need::optional);
  /// The positional argument MODEL, which -m and --model give as well.
  void model(std::filesystem::path& target, const std::string& help, Need need = Need::required);
  /// One or more of them.
  void models(std::vector<std::filesystem::path>& target, const std::string& help);
  /// A file that the command writes. The first of them declares --overwrite, where the command has none of its own.
  void output(const std::string& name, std::filesystem::path& target, const std::string& help,
              Need need = Need::optional);
  /// An integer in [low, high]; the target's value is shown as the default unless `default_text` says otherwise.
  void integer(const std::string& name, std::int64_t& target, std::int64_t low, std::int64_t high,
               const std::string& help, const std::string& default_text = "");
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
  /// The same, of words that may have details behind a colon, commas between them: "block:64,e8m0". set is called with
  /// the index and the details, and returns false for those that mean nothing; allowed_details: what the message says.
  void detailed_choice(const std::string& name, std::vector<std::string> allowed,
                       std::function<bool(std::size_t, const std::vector<std::string>&)> set,
                       const std::string& allowed_details, const std::string& help);
  void flag(const std::string& name, bool& target, const std::string& help);
  /// One or more positional arguments, which are read.
  void paths(const std::string& name, std::vector<std::filesystem::path>& target, const std::string& help);
  /// May be given several times, one value each.
  void list(const std::string& name, std::vector<std::string>& target, const std::string& help);
  /// A list of regular expressions, each checked here.
  void patterns(const std::string& name, std::vector<std::string>& target, const std::string& help);
  /// For a choice or number that was declared already.
  void require(const std::string& name) { required_.push_back(app_.get_option(name)); }
  /// At least one of these is required, as check() says together with what else is missing.
  void one_of(std::vector<std::string> names) { one_of_.push_back(std::move(names)); }
  /// Sets the words that shells offer for a text option with its own rules.
  void offer(const std::string& name, std::vector<std::string> words) { words_[name] = std::move(words); }
  /// One or more files that are read, words behind one another. set gets them all.
  void files(const std::string& name, std::function<void(const std::vector<std::string>&)> set, const std::string& help,
             Need need);
  /// A value of its own rules. type: "R/N"; of one that may be left out "[X]": set gets "" then.
  void custom(const std::string& name, const std::string& type, std::function<void(const std::string&)> set,
              const std::string& help, const std::string& default_text = "");
  /// For an option with its own rules whose value may be a path: a text, a list.
  void reach(const std::string& name, io::Reach reach) { reach_[name] = reach; }
  /// The same for a path that stands in a file.
  void also_reach(io::Reach reach, const std::string& path) { more_reached_.emplace_back(reach, path); }
  /// Asked after the parse: outputs need the folder beside them too, for other processes or for more than one temporary
  /// folder.
  void uses_beside(std::function<bool()> beside) { beside_ = std::move(beside); }
  /// Work before any file but the user's own is read: what his files say. It throws what the command's action may.
  void prepare(std::function<void(Context&)> work) { prepare_ = std::move(work); }
  /// Arguments that are no options but mean something: target gets those that `accepts` takes, in their order.
  void rest(std::function<bool(std::string_view)> accepts, std::vector<std::string>& target);
  /// --json --device --dialect --dtype --threads --seed --load --quiet --verbose --color; the help leaves out what the
  /// command never reads. After its own options.
  void common(Context& context);

  /// A former name of an option, which stands for it: the help leaves it out, hints() say what it is called now.
  void renamed(const std::string& from, const std::string& to);
  /// Leaves a declared option out of the help: hints() name what takes its place, "--scheme block:N".
  void replaced(const std::string& name, const std::string& by);

  /// Parses the words behind the command (arguments.cpp). Throws what CLI11 throws, and UsageError.
  void parse(const std::vector<std::string>& words);
  /// After the parse: "--to is called --format now" for each former name on the command line.
  const std::vector<std::string>& hints() const { return hints_; }
  /// " (--data took a, b)" for a message that MODEL is missing, or "".
  const std::string& taken_words() const { return taken_words_; }

  /// A value that a file or the environment has for an option, in the words of the command line ("true" for a flag,
  /// which "false" leaves alone). After the parse: what the command line gives stays, and false is returned; of several
  /// files the last counts, and a list is the last file's. source: "run.yaml:3: trainer.max_steps". Throws io::Error
  /// naming it for a value that the option does not take.
  bool take(const std::string& name, const std::string& value, const std::string& source);
  bool take(const std::string& name, const std::vector<std::string>& values, const std::string& source);
  /// Returns the source of an option's value: "command line", take()'s source, or "default".
  std::string source_of(const std::string& name) const;

  /// Names of the options, and what the command line gives them: {"--steps", {"5"}}, of a flag {"true"}.
  std::vector<std::string> names() const;
  std::vector<std::pair<std::string, std::vector<std::string>>> given() const;
  /// The values that take() has left an option with.
  std::vector<std::string> taken(const std::string& name) const;
  bool is_list(const std::string& name) const { return lists_.contains(name); }
  /// Returns the defaults that the help shows as values: integers and numbers.
  std::vector<std::pair<std::string, std::string>> defaults() const;

  /// What the paths that were given are for, and each of them; after prepared().
  std::vector<std::pair<io::Reach, std::string>> reached() const;
  io::Reach reach_of(const std::string& name) const;
  bool uses_beside() const { return beside_ && beside_(); }
  void prepared(Context& context) const {
    if (prepare_) prepare_(context);
  }

  /// As the help shows them: arguments first, and what every command has last.
  std::vector<OptionRow> rows() const;
  /// Groups of options of which one is required.
  const std::vector<std::vector<std::string>>& alternatives() const { return one_of_; }

  /// After the parse: throws UsageError for what was not understood, then for all required options that are missing,
  /// then for a common option that the command does not read.
  void check();
  /// After it, before any work: throws io::Error for an output() that exists, without --overwrite. Of several processes
  /// the first asks: it writes.
  void refuse_existing_outputs() const;
  CLI::App& app() { return app_; }

 private:
  CLI::Option* add(const std::string& name, const std::string& type, std::function<void(const std::string&)> set,
                   const std::string& help);
  CLI::Option* add_files(const std::string& name, const std::string& shown,
                         std::function<void(const std::vector<std::string>&)> set, const std::string& help, Need need);
  [[noreturn]] void fail_unknown(const std::string& argument) const;

  CLI::App& app_;
  std::string command_;
  std::vector<CLI::Option*> required_;
  std::vector<std::vector<std::string>> one_of_;
  std::map<std::string, std::vector<std::string>> words_;  ///< option, what a choice takes
  std::function<bool(std::string_view)> accepts_;
  std::vector<std::string>* rest_ = nullptr;
  std::map<std::string, bool*> flags_;
  std::map<std::string, io::Reach> reach_;  ///< of options whose values are paths
  std::vector<std::pair<io::Reach, std::string>> more_reached_;
  std::function<bool()> beside_;
  std::function<void(Context&)> prepare_;
  std::set<std::string> lists_;
  std::set<std::string> several_;                ///< take words behind one another
  std::map<std::string, std::string> taken_;     ///< option, source
  std::map<std::string, std::string> renamed_;   ///< former name, name
  std::map<std::string, std::string> replaced_;  ///< former option, what takes its place
  std::vector<std::string> hints_;
  std::string taken_words_;  ///< " (--data took a, b)", for a MODEL that is missing
  std::vector<const std::filesystem::path*> outputs_;
  bool overwrite_ = false;  ///< --overwrite, where output() declared it

  friend class Arguments;
};

// Which options a newcomer sees: those of `fp8 CMD --help`. The others stand in --help-all.

/// command: "quantize", "measurements merge". Of a command that the table does not know each is common.
Shelf shelf_of(std::string_view command, std::string_view option);

// The options that every command takes, of which some have an effect in few: one table names the readers of each.

/// Throws UsageError for a common option that is given to a command that would not read it.
void refuse_unread(const CLI::App& app);
/// Throws UsageError for an --out that is what is read: --data, or the MODEL of a command that writes another one.
void refuse_own_input(const CLI::App& app);

}  // namespace fp8::commands
