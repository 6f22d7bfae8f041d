// SPDX-License-Identifier: Apache-2.0
// The program: finds the command, and is the one place where errors become exit codes.
#include <exception>
#include <new>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/places.h"
#include "fp8/tools/commands/terminal/message.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

constexpr int kFailure = 1, kUsage = 2;

int report(const std::string& message, int code) {
  const std::string head = "fp8: error:";
  write_stderr((stderr_takes_color() ? painted(head, Color::red) : head) + " " + one_line(without_origin(message)) +
               "\n");
  return code;
}

using Words = std::vector<std::string>;

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

Words names_of(const std::vector<Command>& list) {
  Words names;
  for (const Command& command : list) names.emplace_back(command.name);
  return names;
}

std::size_t help_width() {
  constexpr std::size_t kOfPipes = 80;
  const std::size_t width = output_width();
  return width == 0 ? kOfPipes : width;
}

void print_help(const CommandPage& page, bool all) { write_stdout(help_text(page, help_width(), all)); }

/// The command that the words before the options name.
struct Found {
  const Command* command = nullptr;  ///< null: the program itself
  std::string group;                 ///< "measurements", where the command is one of it
  std::size_t words = 0;             ///< so many lead there
};

/// Throws UsageError for a word that is no command of `list`. group: "" or "measurements".
const Command& command_called(const std::string& word, const std::vector<Command>& list, const std::string& group) {
  const auto found = std::ranges::find(list, word, [](const Command& c) { return std::string_view(c.name); });
  if (found != list.end()) return *found;
  Words names = names_of(list);
  if (group.empty()) names.emplace_back("help");
  io::fail<UsageError>("{}unknown command '{}'{}{}", group.empty() ? "" : group + ": ", word, did_you_mean(word, names),
                       meant(word, names).empty() ? ", allowed: " + io::joined(names) : "");
}

/// Commands that `words` begin with: none, one, or a group and one of it. Throws UsageError as command_called().
Found find_command(const Words& words) {
  if (words.empty() || is_option(words[0])) return {};
  const Command& first = command_called(words[0], commands(), "");
  if (first.add != nullptr || words.size() < 2 || is_option(words[1])) return {&first, "", 1};
  return {&command_called(words[1], first.children, first.name), first.name, 2};
}

CommandPage page_found(const Found& found) {
  if (found.command != nullptr) return page_of(*found.command, found.group);
  return page_of_program();
}

/// The words after "help": a command or a topic, and --help-all.
void run_help(Words words) {
  const bool all = std::erase(words, "--help-all") > 0;
  const bool asked = std::erase(words, "--help") + std::erase(words, "-h") > 0;
  if (words == Words{"help"} || (asked && words.empty())) return print_help(page_of_program().children.back(), all);
  if (words.size() == 1) {
    Words names;
    for (const Topic& topic : topics()) {
      if (words[0] == topic.name) return write_stdout(topic.text(help_width()));
      names.emplace_back(topic.name);
    }
    if (const std::string near = did_you_mean(words[0], names);
        !near.empty() && meant(words[0], names_of(commands())).empty())
      io::fail<UsageError>("help: unknown command or topic '{}'{}", words[0], near);
  }
  const Found found = find_command(words);
  if (found.words < words.size())
    io::fail<UsageError>("help: unexpected argument '{}', allowed: a command, --help-all", words[found.words]);
  print_help(page_found(found), all);
}

/// `fp8`, `fp8 --help`, `fp8 measurements --version`: options that need no command. Throws UsageError for any other
/// option, and for a group alone.
void run_without_command(const Found& found, const Words& words, const std::string& version) {
  if (words.empty()) return print_help(page_of_program(), false);
  const std::string group = found.command != nullptr ? found.command->name : "";
  const std::string where = group.empty() ? "" : group + ": ";
  const Words names = names_of(group.empty() ? commands() : found.command->children);
  if (found.words == words.size())
    io::fail<UsageError>("{}no command given, allowed: {} (see fp8 {}{}--help)", where, io::joined(names), group,
                         group.empty() ? "" : " ");
  const std::string& option = words[found.words];
  if (option == "--help" || option == "-h" || option == "--help-all")
    return print_help(page_found(found), option == "--help-all");
  if (option == "--version" || option == "-V") return write_stdout(version + "\n");
  const std::string near = did_you_mean(option, {"--help", "--help-all", "--version"});
  io::fail<UsageError>("{}unknown option '{}'{}{}{}", where, option, near,
                       near.empty() ? ", allowed: --help, --version or a command: " + io::joined(names) : "",
                       near.empty() && words.size() > 1 ? " (options follow the command)" : "");
}

/// CLI11 drops the dashes when a flag is given a value.
std::string message_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto end = text.find(" was given a disallowed flag override");
  return end == std::string::npos ? text : "--" + text.substr(0, end) + " takes no value";
}

/// A variable that can't mean anything would give other numbers than were asked for. doctor lists them all.
void refuse_environment() {
  const auto problems = environment_problems();
  if (!problems.empty())
    io::fail<io::Error>("environment: {}{}", problems[0], problems.size() > 1 ? " (fp8 doctor lists more)" : "");
}

void run_command(const Words& words, const std::string& commit, const Sandbox& sandbox) {
  const std::string version = "fp8 " FP8_VERSION + (commit.empty() ? "" : " (" + commit + ")");
  if (!words.empty() && words[0] == "help") return run_help(Words(words.begin() + 1, words.end()));
  const Found found = find_command(words);
  if (found.command == nullptr || found.command->add == nullptr) return run_without_command(found, words, version);
  const Command& command = *found.command;
  const bool in_group = !found.group.empty();
  Context context;
  Parser parser(command, (in_group ? found.group + " " : "") + command.name, context);
  try {
    parser.options().parse(Words(words.begin() + static_cast<std::ptrdiff_t>(found.words), words.end()));
  } catch (const CLI::CallForHelp&) {
    return print_help(page_found(found), false);
  } catch (const CLI::CallForAllHelp&) {
    return print_help(page_found(found), true);
  } catch (const CLI::CallForVersion&) {
    return write_stdout(version + "\n");
  }
  parser.options().check();
  if (std::string_view(command.name) != "doctor") refuse_environment();
  const Ranks ranks = in_group ? command_called(found.group, commands(), "").ranks : command.ranks;
  if (!takes_part(ranks, command.name, context)) return;
  for (const auto& hint : parser.options().hints()) context.warn(hint);
  if (std::string_view(command.name) != "doctor")
    for (const auto& problem : io::unknown_variables(/*misspelt=*/true)) context.warn(problem);
  parser.options().refuse_existing_outputs();
  apply(context);
  parser.options().prepared(context);
  const NamedPlaces kept(parser.options(), sandbox, context);
  parser.action()(context);
}

/// --color, for what is said before the command line is parsed, or because it can't be.
void look_for_color(const Words& words) {
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const bool joined = words[i].starts_with("--color=");
    if (!joined && (words[i] != "--color" || i + 1 == words.size())) continue;
    const auto mode = parse_enum<ColorMode>(joined ? std::string_view(words[i]).substr(8) : words[i + 1]);
    if (mode.has_value()) set_color_mode(*mode);
  }
}

/// Errors become messages. Throws std::bad_alloc.
int run_reporting(int argc, char** argv, const char* commit, const Sandbox& sandbox) {
  const Words words(argv + (argc > 0 ? 1 : 0), argv + argc);
  look_for_color(words);
  try {
    run_command(words, commit, sandbox);
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(message_of(error), kUsage);
  } catch (const UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const Interrupted& error) {
    return report(error.what(), exit_code_of_signal());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return report(what_of(error), interrupted() ? exit_code_of_signal() : kFailure);
  }
}

}  // namespace

std::string flag_of_option(std::string_view id, std::string_view value) {
  struct Flag {
    std::string_view id, text;  ///< {}: the value
  };
  constexpr std::string_view kPlain[] = {"include", "exclude", "ignore", "linear",
                                         "keep",    "assume",  "resume", "overwrite"};
  constexpr Flag kFlags[] = {
      {"activations", " (--{})"},
      {"allow_nonfinite", "allow_nonfinite, --allow-nonfinite,"},
      {"assume_form", "--assume {}"},
      {"convert_assume", "fp8 convert --assume {}"},
      {"convert_dialect", "fp8 convert --dialect {}"},
      {"dialect", "--dialect {}"},
      {"experts", "--experts keep"},
      {"form", "--format {},"},
      {"format", "--format {}"},
      {"kv_cache", "--kv-cache off"},
      {"measure", "fp8 measure, or fp8 evaluate with a QUANT_CONFIG of mode MEASURE"},
      {"measure_heads", "fp8 measure without --config measures heads"},
      {"measure_queries", "fp8 measure --config, of mode MEASURE, measures it"},
      {"measure_modules", "fp8 measure without --config measures them"},
      {"measurements", "fp8 quantize --measurements"},
      {"quantize", "fp8 quantize"},
      {"range", "448/240"},
      {"rescale", "--rescale {}"},
      {"scale_format", "--scheme block:f32"},
      {"weight_scales", "--weight-scales mse"},
      {"stacked_experts", " (--experts keep leaves stacked experts as they are)"},
      {"tensor_or_dynamic", "--scheme tensor or --dynamic"},
      {"unify", "fp8 convert --format inc --ranks 1"},
      {"weights", "--scheme"},
  };
  if (std::ranges::find(kPlain, id) != std::end(kPlain)) return "--" + std::string(id);
  const auto row = std::ranges::find(kFlags, id, &Flag::id);
  if (row == std::end(kFlags)) return "";  // the library's name stands
  std::string text(row->text);
  if (const auto place = text.find("{}"); place != std::string::npos) text.replace(place, 2, value);
  return text;
}

std::string what_of(const std::exception& error) { return io::spelled(io::raw_message(error), flag_of_option); }

int run(int argc, char** argv, const char* commit, const Sandbox& sandbox) {
  install_signal_handlers();
  try {
    return run_reporting(argc, argv, commit, sandbox);
  } catch (const std::bad_alloc&) {  // perhaps where an error was put into words: without memory
    write_stderr("fp8: error: out of memory\n");
    return kFailure;
  }
}

}  // namespace fp8::commands
