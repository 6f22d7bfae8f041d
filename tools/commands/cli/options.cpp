// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "fp8/runtime/io/base/closest.h"
#include "fp8/runtime/io/base/error.h"
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

/// A command that reads a common option.
struct OptionReader {
  const char* command;
  const char* with = nullptr;     ///< only beside this option of its own
  const char* refusal = nullptr;  ///< it does not: why, in its own words
};

struct CommonOption {
  const char* name;
  std::span<const OptionReader> readers;  ///< none: what it promises holds for every command
};

// What a model needs is read by the commands that load one.
constexpr OptionReader kModels[] = {
    {"measure"},           {"evaluate"}, {"generate"}, {"embed"}, {"train"}, {"run"}, {"quantize", "--budget"},
    {"inspect", "--data"}, {"doctor"}};
constexpr OptionReader kDtypes[] = {
    {"measure"},
    {"evaluate"},
    {"generate"},
    {"embed"},
    {"run"},
    {"quantize", "--budget"},
    {"inspect", "--data"},
    {"train", nullptr, "weights are f32 in training, allowed: --precision and --save-dtype"}};
constexpr OptionReader kLoaders[] = {
    {"measure"},           {"evaluate"}, {"generate"}, {"embed"}, {"train"}, {"run"}, {"quantize", "--budget"},
    {"inspect", "--data"}, {"doctor"}};
constexpr OptionReader kDialects[] = {{"quantize"}, {"convert"}, {"evaluate"}, {"generate"}, {"embed"},
                                      {"train"},    {"run"},     {"inspect"},  {"config"}};
constexpr CommonOption kCommon[] = {{"--json", {}},       {"--device", kModels}, {"--dialect", kDialects},
                                    {"--dtype", kDtypes}, {"--threads", {}},     {"--seed", {}},
                                    {"--load", kLoaders}, {"--quiet", {}}};

const OptionReader* reader_of(const CommonOption& option, const std::string& command) {
  for (const OptionReader& reader : option.readers)
    if (command == reader.command) return &reader;
  return nullptr;
}

std::string names_of(std::span<const OptionReader> readers) {
  std::vector<std::string> names;
  for (const OptionReader& reader : readers)
    if (reader.refusal == nullptr)
      names.push_back(reader.command + (reader.with != nullptr ? " " + std::string(reader.with) : ""));
  return io::joined(names);
}

/// CLI11 has no name for an option that the help leaves out.
std::string long_name(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return names.empty() ? option.get_name(/*positional=*/true) : "--" + names[0];
}

/// Throws UsageError for a common option that is given to a command that would not read it.
void refuse_unread(const CLI::App& app) {
  for (const CommonOption& common : kCommon) {
    const CLI::Option* option = app.get_option_no_throw(common.name);
    if (common.readers.empty() || option == nullptr || option->count() == 0) continue;
    const OptionReader* reader = reader_of(common, app.get_name());
    if (reader != nullptr && reader->refusal != nullptr)
      throw UsageError(std::string(common.name) + ": " + reader->refusal);
    if (reader == nullptr || (reader->with != nullptr && app.count(reader->with) == 0))
      throw UsageError(app.get_name() + ": " + common.name +
                       " has no effect here, it goes with: " + names_of(common.readers));
  }
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

void Options::number_or_none(const std::string& name, std::optional<double>& target, double low, double high,
                             const std::string& help) {
  const auto set = [&target, name, low, high](const std::string& text) {
    const auto value = text.empty() ? std::optional<double>(low) : parse_number(text);
    if (!value || *value < low || *value > high)
      bad_value(name, text, "a number from " + plain(low) + " to " + plain(high) + ", or nothing");
    target = *value;
  };
  add(name, "[X]", set, help)->expected(0, 1);
}

void Options::choice(const std::string& name, std::vector<std::string> allowed, std::function<void(std::size_t)> set,
                     const std::string& help) {
  std::string type;
  for (const auto& word : allowed) type += (type.empty() ? "" : "|") + word;
  const auto apply = [name, allowed = std::move(allowed), set = std::move(set)](const std::string& text) {
    for (std::size_t i = 0; i < allowed.size(); ++i)
      if (allowed[i] == text) return set(i);
    const std::string meant = io::closest(text, allowed);  // which a long list hides
    const bool near = allowed.size() > 4 && io::edit_distance(text, meant) <= 2;
    bad_value(name, text, io::joined(allowed) + (near ? "; did you mean '" + meant + "'?" : ""));
  };
  add(name, type, apply, help);
}

void Options::rest(std::function<bool(std::string_view)> accepts, std::vector<std::string>& target) {
  accepts_ = std::move(accepts);
  rest_ = &target;
}

void Options::flag(const std::string& name, bool& target, const std::string& help) {
  app_.add_flag(name, target, help)->disable_flag_override();  // "--json=3" is an error
  flags_[name] = &target;
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
  lists_.insert(name);
}

void Options::common(Context& context) {
  constexpr auto kMaxSeed = std::numeric_limits<std::int64_t>::max();
  flag("--json", context.json, "Print one JSON object on stdout; messages go to stderr");
  const bool loads_none = app_.get_name() == "doctor";
  choice(
      "--device", {"hpu", "cpu"}, [&](std::size_t i) { context.device = i == 0 ? "hpu" : "cpu"; },
      loads_none ? "Which dtypes each generation of the device takes" : "Where the model runs (default hpu)");
  if (loads_none) app_.get_option("--device")->expected(0, 1)->type_name("[hpu]")->default_str("hpu");
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
  for (const CommonOption& common : kCommon) {  // taken, so that check() can say who reads it, but not offered
    const OptionReader* reader = reader_of(common, app_.get_name());
    if (!common.readers.empty() && (reader == nullptr || reader->refusal != nullptr))
      app_.get_option(common.name)->group("");
  }
}

bool Options::take(const std::string& name, const std::string& value, const std::string& source) {
  return take(name, std::vector<std::string>{value}, source);
}

bool Options::take(const std::string& name, const std::vector<std::string>& values, const std::string& source) {
  CLI::Option* option = app_.get_option(name);
  if (option->count() > 0 && !taken_.contains(name)) return false;
  const auto flag = flags_.find(name);
  if (flag != flags_.end() && values.at(0) != "true" && values[0] != "false")
    throw io::Error(source + ": found " + io::in_quotes(values[0]) + ", allowed: true, false");
  option->clear();
  taken_[name] = source;
  if (flag != flags_.end()) {
    *flag->second = values[0] == "true";
    return true;
  }
  try {
    for (const std::string& value : values) option->add_result(value);
    option->run_callback();
  } catch (const UsageError& error) {  // "--steps: found ..."
    const std::string text = error.what();
    throw io::Error(source + text.substr(std::min(text.size(), name.size())));
  } catch (const CLI::ParseError& error) {
    throw io::Error(source + ": " + error.what());
  }
  return true;
}

std::string Options::source_of(const std::string& name) const {
  const auto taken = taken_.find(name);
  if (taken != taken_.end()) return taken->second;
  return app_.get_option(name)->count() > 0 ? "command line" : "default";
}

std::vector<std::string> Options::names() const {
  std::vector<std::string> names;
  for (const auto* option : app_.get_options())
    if (!option->get_lnames().empty()) names.push_back(long_name(*option));
  return names;
}

std::vector<std::pair<std::string, std::vector<std::string>>> Options::given() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const auto* option : app_.get_options()) {
    const std::string name = long_name(*option);
    if (option->count() == 0 || taken_.contains(name)) continue;
    all.emplace_back(name, flags_.contains(name) ? std::vector<std::string>{"true"} : option->results());
  }
  return all;
}

std::vector<std::string> Options::taken(const std::string& name) const {
  const auto flag = flags_.find(name);
  if (flag != flags_.end()) return {*flag->second ? "true" : "false"};
  return app_.get_option(name)->results();
}

std::vector<std::pair<std::string, std::string>> Options::defaults() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto* option : app_.get_options())
    if (parse_number(option->get_default_str())) all.emplace_back(long_name(*option), option->get_default_str());
  return all;
}

void Options::check() {
  for (const auto& argument : app_.remaining()) {
    if (argument == "--") continue;
    if (accepts_ && accepts_(argument)) {
      rest_->push_back(argument);
      continue;
    }
    if (argument.size() < 2 || argument[0] != '-')
      throw UsageError(app_.get_name() + ": unexpected argument '" + argument + "'");
    std::vector<std::string> names;
    for (const auto* option : app_.get_options())
      if (!option->get_positional() && !option->get_group().empty()) names.push_back(option->get_name());
    throw UsageError(app_.get_name() + ": unknown option '" + argument.substr(0, argument.find('=')) +
                     "', allowed: " + io::joined(names));
  }
  for (const auto* option : required_)
    if (option->count() == 0)
      throw UsageError(app_.get_name() + ": " + option->get_name(option->get_positional()) + " is required");
  refuse_unread(app_);
}

}  // namespace fp8::commands
