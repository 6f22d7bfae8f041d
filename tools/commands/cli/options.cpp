// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/options.h"

#include <charconv>
#include <iterator>

#include "fp8/configs/name_patterns.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

std::string plain(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// CLI11 has no name for an option that the help leaves out.
std::string long_name(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return names.empty() ? option.get_name(/*positional=*/true) : "--" + names[0];
}

/// "MODEL" of what is an argument and an option.
std::string shown_name(const CLI::Option& option) {
  return option.get_positional() ? option.get_name(/*positional=*/true) : long_name(option);
}

/// A name that means the same in every command.
struct SharedName {
  const char* name;      ///< "--out"
  char flag;             ///< 'o'; '\0': none
  const char* argument;  ///< what the help calls its value: "OUT"; "": by its type
};

constexpr SharedName kSharedNames[] = {
    {"--model", 'm', "MODEL"},
    {"--data", 'd', "FILE"},
    {"--out", 'o', "OUT"},
    {"--samples", 'n', ""},
    {"--quiet", 'q', ""},
    {"--verbose", 'v', ""},
    {"--json", 'j', ""},
    {"--threads", 't', ""},
    {"--format", 'f', ""},
    {"--config", 'c', "FILE"},
    {"--preset", 'p', "NAME"},
    {"--reference", 'r', ""},
    {"--measurements", '\0', "DIR"},
};

/// Null for a name of one command.
const SharedName* shared_name(std::string_view option) {
  const auto* found =
      std::ranges::find(kSharedNames, option, [](const auto& row) { return std::string_view(row.name); });
  return found == std::end(kSharedNames) ? nullptr : found;
}

/// "-o,--out", as CLI11 takes names.
std::string with_flag(const std::string& name) {
  const SharedName* shared = shared_name(name);
  return shared == nullptr || shared->flag == '\0' ? name : std::string{'-', shared->flag, ','} + name;
}

}  // namespace

void bad_value(const std::string& name, const std::string& found, const std::string& allowed) {
  io::fail<UsageError>("{}: found '{}', allowed: {}", name, found, allowed);
}

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
  return app_.add_option_function<std::string>(with_flag(name), std::move(set), help)->type_name(type);
}

void Options::text(const std::string& name, std::string& target, const std::string& help, Need need) {
  auto* option = add(name, "TEXT", [&target](const std::string& value) { target = value; }, help);
  if (need == Need::required) required_.push_back(option);
}

void Options::text(const std::string& name, std::optional<std::string>& target, const std::string& help) {
  add(name, "TEXT", [&target](const std::string& value) { target = value; }, help);
}

void Options::path(const std::string& name, std::filesystem::path& target, io::Reach reach, const std::string& help,
                   Need need) {
  reach_[name] = reach;
  const auto set = [&target, name](const std::string& value) {
    if (value.empty()) bad_value(name, value, "a path");
    target = value;
  };
  auto* option = add(name, "PATH", set, help);
  if (need == Need::required) required_.push_back(option);
}

void Options::model(std::filesystem::path& target, const std::string& help, Need need) {
  add_files(
      "--model", "MODEL,-m,--model", [&target](const auto& values) { target = values.at(0); }, help, need)
      ->expected(1)
      ->allow_extra_args(false);
}

void Options::models(std::vector<std::filesystem::path>& target, const std::string& help) {
  const auto set = [&target](const std::vector<std::string>& values) { target.assign(values.begin(), values.end()); };
  add_files("--model", "MODEL,-m,--model", set, help, Need::required);
  several_.insert("--model");
}

void Options::output(const std::string& name, std::filesystem::path& target, const std::string& help, Need need) {
  path(name, target, io::Reach::file, help, need);
  outputs_.push_back(&target);
  if (app_.get_option_no_throw("--overwrite") == nullptr) flag("--overwrite", overwrite_, kOverwriteHelp);
}

void Options::refuse_existing_outputs() const {
  const auto* overwrite = app_.get_option_no_throw("--overwrite");
  if (outputs_.empty() || !io::is_first_process()) return;
  for (const auto* path : outputs_) refuse_existing(*path, overwrite->count() > 0);
}

void Options::integer(const std::string& name, std::int64_t& target, std::int64_t low, std::int64_t high,
                      const std::string& help, const std::string& default_text) {
  const auto set = [&target, name, low, high](const std::string& text) {
    const auto value = parse_integer(text);
    if (!value || *value < low || *value > high)
      bad_value(name, text, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    target = *value;
  };
  add(name, "N", set, help)->default_str(default_text.empty() ? std::to_string(target) : default_text);
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
  custom(name, "[X]", set, help);
}

void Options::custom(const std::string& name, const std::string& type, std::function<void(const std::string&)> set,
                     const std::string& help, const std::string& default_text) {
  auto* option = add(name, type, std::move(set), help)->default_str(default_text);
  if (type.starts_with('[')) option->expected(0, 1);
}

void Options::choice(const std::string& name, std::vector<std::string> allowed, std::function<void(std::size_t)> set,
                     const std::string& help) {
  const std::string type = io::joined(allowed, "|");
  words_[name] = allowed;
  const auto apply = [name, allowed = std::move(allowed), set = std::move(set)](const std::string& text) {
    for (std::size_t i = 0; i < allowed.size(); ++i)
      if (allowed[i] == text) return set(i);
    const std::string near = allowed.size() > 4 ? meant(text, allowed) : "";  // which a long list hides
    bad_value(name, text, io::joined(allowed) + (near.empty() ? "" : "; did you mean '" + near + "'?"));
  };
  add(name, type, apply, help);
}

void Options::detailed_choice(const std::string& name, std::vector<std::string> allowed,
                              std::function<bool(std::size_t, const std::vector<std::string>&)> set,
                              const std::string& allowed_details, const std::string& help) {
  const std::string type = io::joined(allowed, "|");
  words_[name] = allowed;
  const auto apply = [=, set = std::move(set)](const std::string& text) {
    const auto colon = text.find(':');
    const auto word = std::ranges::find(allowed, text.substr(0, colon));
    std::vector<std::string> details;
    for (auto at = colon; at != std::string::npos;) {
      const auto comma = text.find(',', at + 1);
      details.push_back(text.substr(at + 1, comma == std::string::npos ? comma : comma - at - 1));
      at = comma;
    }
    if (word == allowed.end() || !set(static_cast<std::size_t>(word - allowed.begin()), details))
      bad_value(name, text, io::joined(allowed) + "; " + allowed_details);
  };
  add(name, type, apply, help);
}

void Options::rest(std::function<bool(std::string_view)> accepts, std::vector<std::string>& target) {
  accepts_ = std::move(accepts);
  rest_ = &target;
}

void Options::flag(const std::string& name, bool& target, const std::string& help) {
  app_.add_flag(with_flag(name), target, help)->disable_flag_override();  // "--json=3" is an error
  flags_[name] = &target;
}

void Options::paths(const std::string& name, std::vector<std::filesystem::path>& target, const std::string& help) {
  const auto set = [&target](const std::vector<std::string>& values) { target.assign(values.begin(), values.end()); };
  add_files(name, name, set, help, Need::required);
}

void Options::list(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  app_.add_option(name, target, help)->type_name("TEXT")->allow_extra_args(false);
  lists_.insert(name);
}

void Options::patterns(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  list(name, target, help);
  app_.get_option(name)->each([name](const std::string& pattern) {
    try {
      const configs::PythonRegex compiled(pattern, name);
    } catch (const io::Error& error) {
      throw UsageError(error.what());
    }
  });
}

CLI::Option* Options::add_files(const std::string& name, const std::string& shown,
                                std::function<void(const std::vector<std::string>&)> set, const std::string& help,
                                Need need) {
  const std::function<void(const std::vector<std::string>&)> checked =
      [name, set = std::move(set)](const std::vector<std::string>& values) {
        for (const auto& value : values)
          if (value.empty()) bad_value(name, value, "a path");
        set(values);
      };
  reach_[name] = io::Reach::read;
  auto* option = app_.add_option_function<std::vector<std::string>>(shown, checked, help)->type_name("PATH");
  if (need == Need::required) required_.push_back(option);
  return option;
}

void Options::files(const std::string& name, std::function<void(const std::vector<std::string>&)> set,
                    const std::string& help, Need need) {
  add_files(name, with_flag(name), std::move(set), help, need)->allow_extra_args(false);
  several_.insert(name);
}

bool Options::take(const std::string& name, const std::string& value, const std::string& source) {
  return take(name, std::vector<std::string>{value}, source);
}

bool Options::take(const std::string& name, const std::vector<std::string>& values, const std::string& source) {
  if (const auto now = renamed_.find(name); now != renamed_.end()) return take(now->second, values, source);
  CLI::Option* option = app_.get_option(name);
  if (option->count() > 0 && !taken_.contains(name)) return false;
  const auto flag = flags_.find(name);
  if (flag != flags_.end() && values.at(0) != "true" && values[0] != "false")
    io::fail<io::Error>("{}: found {}, allowed: true, false", source, io::in_quotes(values[0]));
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
    io::fail<io::Error>("{}: {}", source, error.what());
  }
  return true;
}

std::string Options::source_of(const std::string& name) const {
  const auto taken = taken_.find(name);
  if (taken != taken_.end()) return taken->second;
  return app_.get_option(name)->count() > 0 ? "command line" : "default";
}

std::vector<std::pair<io::Reach, std::string>> Options::reached() const {
  auto all = more_reached_;
  for (const auto& [name, reach] : reach_)
    for (const std::string& path : app_.get_option(name)->results())
      if (!path.empty()) all.emplace_back(reach, path);
  return all;
}

io::Reach Options::reach_of(const std::string& name) const {
  const auto found = reach_.find(name);
  return found == reach_.end() ? io::Reach::none : found->second;
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

std::vector<OptionRow> Options::rows() const {
  std::vector<OptionRow> arguments, own, last;
  for (const CLI::Option* option : app_.get_options()) {
    if (option->get_group() == kHidden) continue;
    OptionRow row;
    row.positional = option->get_positional();
    if (!row.positional)
      for (const auto& name : option->get_snames()) row.names.push_back("-" + name);
    row.names.push_back(shown_name(*option));
    const std::string& name = row.long_name();
    const auto words = words_.find(name);
    if (words != words_.end()) row.words = words->second;
    const bool is_flag = !row.positional && option->get_expected_max() == 0;
    row.type = is_flag ? "" : option->get_type_name();
    row.value = is_flag              ? Value::none
                : !row.words.empty() ? Value::word
                : row.type == "PATH" ? Value::file
                : row.type == "TEXT" ? Value::text
                                     : Value::word;
    const SharedName* shared = shared_name(name);
    const bool any = row.value == Value::file || row.value == Value::text;
    if (shared != nullptr && *shared->argument != '\0' && any) row.type = shared->argument;
    row.fallback = option->get_default_str();
    row.help = option->get_description();
    if (row.positional && !option->get_lnames().empty()) row.help += " (also -m, --model)";
    row.repeated = option->get_expected_max() > 1;
    row.required = std::ranges::find(required_, option) != required_.end();
    row.shelf = row.required || row.positional ? Shelf::common : shelf_of(command_, name);
    const bool about = name == "--help" || name == "--help-all" || name == "--version";
    (row.positional ? arguments : about ? last : own).push_back(std::move(row));
  }
  for (auto* part : {&own, &last}) std::ranges::move(*part, std::back_inserter(arguments));
  return arguments;
}

void Options::fail_unknown(const std::string& argument) const {
  const std::string where = app_.get_name() + ": unknown option '" + argument.substr(0, argument.find('=')) + "'";
  std::vector<std::string> names, common;
  bool takes_quant_config = false;
  for (const auto& row : rows()) {
    if (row.long_name() == "MODEL") names.insert(names.end(), {"-m", "--model"});
    if (row.positional) continue;
    takes_quant_config = takes_quant_config || (row.long_name() == "--config" && row.help.starts_with("QUANT_CONFIG"));
    names.insert(names.end(), row.names.begin(), row.names.end());
    if (row.shelf == Shelf::common) common.push_back(row.long_name());
  }
  const std::string all = " (fp8 " + command_ + " --help-all lists all)";
  if (argument.starts_with("--scale-method") && takes_quant_config)
    throw UsageError(where + R"(: methods stand in the JSON of --config, as {"scale_method": "maxabs_hw"})" + all);
  const std::string near = did_you_mean(argument.substr(0, argument.find('=')), names);
  throw UsageError(where + (near.empty() ? ", allowed: " + io::joined(common) : near) +
                   (near.empty() && common.size() == names.size() ? "" : all));
}

void Options::check() {
  std::optional<std::string> surplus;
  for (const auto& argument : app_.remaining()) {
    if (argument == "--") continue;
    if (accepts_ && accepts_(argument))
      rest_->push_back(argument);
    else if (argument.size() > 1 && argument[0] == '-')
      fail_unknown(argument);
    else if (!surplus.has_value())
      surplus = argument;
  }
  if (surplus.has_value()) io::fail<UsageError>("{}: unexpected argument '{}'", app_.get_name(), *surplus);
  std::vector<std::string> missing;
  for (const auto* option : required_)
    if (option->count() == 0) missing.push_back(shown_name(*option));
  for (const auto& names : one_of_)
    if (std::ranges::none_of(names, [&](const auto& name) { return app_.count(name) > 0; }))
      missing.push_back("one of " + io::joined(names));
  if (!missing.empty())
    fail_missing(app_.get_name(), missing, std::ranges::count(missing, "MODEL") > 0 ? taken_words_ : "");
  refuse_unread(app_);
  refuse_own_input(app_);
}

void fail_missing(const std::string& command, const std::vector<std::string>& names, const std::string& note) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  const std::string list = first.empty() ? names.back() : io::joined(first) + " and " + names.back();
  io::fail<UsageError>("{}: {}{}{}", command, list, first.empty() ? " is required" : " are required", note);
}

void Options::renamed(const std::string& from, const std::string& to) { renamed_[from] = to; }

void Options::replaced(const std::string& name, const std::string& by) {
  app_.get_option(name)->group(kHidden);
  replaced_[name] = by;
}

namespace {

struct CommonOnes {
  std::string_view command, options;  ///< spaces between
};

// Required options are always common and need no entry.
constexpr CommonOnes kCommonOnes[] = {
    {"measure", "--data --samples --seq-len --batch --exclude --config --resume --device"},
    {"quantize",
     "--preset --measurements --dynamic --weights-only --scheme --format --include --exclude --kv-cache --config "
     "--overwrite --check --dry-run"},
    {"convert", "--scheme --verify --overwrite --dry-run"},
    {"evaluate", "--data --reference --samples --seq-len --batch --kv-cache --device --dtype"},
    {"generate", "--prompt --prompt-file --data --tokens --temperature --kv-cache --device --dtype --seed"},
    {"embed", "--data --pooling --normalize --seq-len --batch --device --dtype"},
    {"train",
     "STAGE --init --model --data --out --steps --batch --seq-len --lr --warmup --precision --recipe --measurements "
     "--eval --eval-every --save-every --resume --overwrite --config --device --seed"},
    {"run", "--measurements --samples --batch --reference --device --dtype"},
    {"inspect", "--html --plot --all --data --measurements --reference --plan --tensors-only --verify"},
    {"config", "--kind --model --set --out"},
    {"doctor", "--all --device"},
    {"measurements merge", ""},
    {"measurements unify", "--ranks --world-size --experts --no-scales"},
    {"measurements expand", "--ranks"},
    {"measurements postprocess", "--keep-orig"},
    {"measurements diff", "--tolerance --top"},
    {"measurements show", ""},
    {"completion", ""},
    {"man", "--out"},
};
constexpr std::string_view kEverywhere = "--overwrite --json --quiet --verbose --help --help-all";
constexpr std::string_view kProcesses =
    "--rank --world-size --shares --lease-seconds --join --wait --pipeline --rank-timeout --strategy --bucket-cap-mb "
    "--find-unused-parameters --static-graph --gradient-as-bucket-view --comm-hook --fusion-buffer-dtype --reduce-amax";

/// A word of the list.
bool has(std::string_view list, std::string_view option) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(' ', begin), list.size());
    if (list.substr(begin, end - begin) == option) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Shelf shelf_of(std::string_view command, std::string_view option) {
  const auto* row = std::ranges::find(kCommonOnes, command, &CommonOnes::command);
  if (row == std::end(kCommonOnes) || has(kEverywhere, option) || has(row->options, option)) return Shelf::common;
  return has(kProcesses, option) ? Shelf::processes : Shelf::advanced;
}

}  // namespace fp8::commands
