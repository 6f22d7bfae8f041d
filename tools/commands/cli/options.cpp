// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/options.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "fp8/runtime/io/base/text.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kMaxThreads = 1024;

[[noreturn]] void bad_value(const std::string& name, const std::string& found, const std::string& allowed) {
  throw UsageError(name + ": found '" + found + "', allowed: " + allowed);
}

std::string plain(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

CLI::Option* Options::add(const std::string& name, const std::string& type, std::function<void(const std::string&)> set,
                          const std::string& help) {
  return app_.add_option_function<std::string>(name, std::move(set), help)->type_name(type);
}

void Options::text(const std::string& name, std::string& target, const std::string& help, Need need) {
  auto* option = add(name, "TEXT", [&target](const std::string& value) { target = value; }, help);
  if (need == Need::required) required_.push_back(option);
}

void Options::text(const std::string& name, std::optional<std::string>& target, const std::string& help) {
  add(name, "TEXT", [&target](const std::string& value) { target = value; }, help);
}

void Options::path(const std::string& name, std::filesystem::path& target, const std::string& help, Need need) {
  const auto set = [&target, name](const std::string& value) {
    if (value.empty()) bad_value(name, value, "a path");
    target = value;
  };
  auto* option = add(name, "PATH", set, help);
  if (need == Need::required) required_.push_back(option);
}

void Options::integer(const std::string& name, std::int64_t& target, std::int64_t low, std::int64_t high,
                      const std::string& help, const std::string& shown) {
  const auto set = [&target, name, low, high](const std::string& text) {
    const auto value = parse_integer(text);
    if (!value || *value < low || *value > high)
      bad_value(name, text, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    target = *value;
  };
  add(name, "N", set, help)->default_str(shown.empty() ? std::to_string(target) : shown);
}

void Options::number(const std::string& name, double& target, double low, double high, const std::string& help) {
  const auto set = [&target, name, low, high](const std::string& text) {
    const auto value = parse_number(text);
    if (!value || *value < low || *value > high)
      bad_value(name, text, "a number from " + plain(low) + " to " + plain(high));
    target = *value;
  };
  add(name, "X", set, help)->default_str(plain(target));
}

void Options::choice(const std::string& name, std::vector<std::string> allowed, std::function<void(std::size_t)> set,
                     const std::string& help) {
  std::string type;
  for (const auto& word : allowed) type += (type.empty() ? "" : "|") + word;
  const auto apply = [name, allowed = std::move(allowed), set = std::move(set)](const std::string& text) {
    for (std::size_t i = 0; i < allowed.size(); ++i)
      if (allowed[i] == text) return set(i);
    bad_value(name, text, io::joined(allowed));
  };
  add(name, type, apply, help);
}

void Options::flag(const std::string& name, bool& target, const std::string& help) {
  app_.add_flag(name, target, help)->disable_flag_override();  // "--json=3" is an error
}

void Options::paths(const std::string& name, std::vector<std::filesystem::path>& target, const std::string& help) {
  const std::function<void(const std::vector<std::string>&)> set = [&target,
                                                                    name](const std::vector<std::string>& values) {
    for (const auto& value : values) {
      if (value.empty()) bad_value(name, value, "a path");
      target.emplace_back(value);
    }
  };
  required_.push_back(app_.add_option_function<std::vector<std::string>>(name, set, help)->type_name("PATH"));
}

void Options::list(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  app_.add_option(name, target, help)->type_name("TEXT")->allow_extra_args(false);
}

void Options::common(Context& context) {
  constexpr auto kMaxSeed = std::numeric_limits<std::int64_t>::max();
  flag("--json", context.json, "Print one JSON object on stdout; messages go to stderr");
  choice(
      "--device", {"hpu", "cpu"}, [&](std::size_t i) { context.device = i == 0 ? "hpu" : "cpu"; },
      "Where the model runs (default hpu)");
  choice<kernels::Dialect>("--dialect", context.dialect,
                           "Reading of the fp8 formats: of what is written, and of a checkpoint without fp8.json");
  choice<kernels::FloatType>("--dtype", context.dtype, "Compute dtype (default the checkpoint's)");
  add(
      "--threads", "N",
      [&](const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < 1 || *value > kMaxThreads)
          bad_value("--threads", text, "an integer from 1 to " + std::to_string(kMaxThreads));
        context.threads = *value;
      },
      "Threads of the whole program (default all CPUs)");
  add(
      "--seed", "N",
      [&](const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < 0) bad_value("--seed", text, "an integer from 0 to " + std::to_string(kMaxSeed));
        context.seed = static_cast<std::uint64_t>(*value);
      },
      "Seed of everything random")
      ->default_str("0");
  list("--load", context.load, "A library of operators to load (fp8_add_extension), several times if wanted");
  flag("--quiet", context.quiet, "No warnings, no progress bar");
}

void Options::check() const {
  for (const auto& argument : app_.remaining()) {
    if (argument == "--") continue;
    if (argument.size() < 2 || argument[0] != '-')
      throw UsageError(app_.get_name() + ": unexpected argument '" + argument + "'");
    std::vector<std::string> names;
    for (const auto* option : app_.get_options())
      if (!option->get_positional()) names.push_back(option->get_name());
    throw UsageError(app_.get_name() + ": unknown option '" + argument.substr(0, argument.find('=')) +
                     "', allowed: " + io::joined(names));
  }
  for (const auto* option : required_)
    if (option->count() == 0)
      throw UsageError(app_.get_name() + ": " + option->get_name(option->get_positional()) + " is required");
}

}  // namespace fp8::commands
