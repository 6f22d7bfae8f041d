// SPDX-License-Identifier: Apache-2.0
// The table of commands, and the one place where errors become exit codes.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/configs/option_names.h"
#include "fp8/runtime/io/base/ensure.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/environment.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"measure", "Run a model on calibration data and write the amax of its tensors",
       "fp8 measure --model model --data calibration.txt --out stats --samples 128", add_measure},
      {"quantize", "Write an fp8 checkpoint", "fp8 quantize --model model --measurements stats --out model-fp8",
       add_quantize},
      {"convert", "Write an fp8 checkpoint in another form, or back in high precision",
       "fp8 convert --model model-fp8 --to bf16 --out model-bf16 --verify", add_convert},
      {"evaluate", "Perplexity of a model on a text, and its distance from a reference model",
       "fp8 evaluate --model out/fp8 --data text.txt --reference model --seq-len 256", add_evaluate,
       Ranks::share_unless_measures},
      {"generate", "Continue a prompt", "fp8 generate --model model --prompt \"In the beginning\" --tokens 100",
       add_generate, Ranks::first_unless_measures},
      {"embed", "One vector of each text, as sentence encoders give it",
       "fp8 embed --model model --data texts.jsonl --out vectors.safetensors", add_embed, Ranks::first_unless_measures},
      {"train", "Train a model on a text, from drawn weights or from a checkpoint, in fp8 or in higher precision",
       "fp8 train --init config.json --data text.txt --out run --steps 1000 --precision fp8 --eval heldout.txt",
       add_train},
      {"run", "Run a TorchScript model on sound or tensors, in high precision or with measured modules in fp8",
       "fp8 run model.jit --inputs sound.wav --measurements stats --out result.safetensors", add_run, Ranks::first},
      {"inspect", "Table of a checkpoint, a measurement or a scale file", "fp8 inspect out/fp8", add_inspect,
       Ranks::first},
      {"config", "What a config means, or what is wrong with it: QUANT_CONFIG, recipe, DeepSpeed, Optimum",
       "fp8 config explain quant.json --model model", add_config},
      {"measurements", "Merge, unify, expand, compare and show measurement and scale files",
       "fp8 measurements diff stats-old stats-new", nullptr, Ranks::first, measurements_commands()},
      {"doctor", "What this machine, this build and the environment add up to", "fp8 doctor", add_doctor},
  };
  return table;
}

constexpr int kFailure = 1, kUsage = 2;

int report(const std::string& message, int code) {
  write_stderr("fp8: error: " + one_line(message) + "\n");
  return code;
}

std::string names_of(const std::vector<Command>& list) {
  return io::joined(list | std::views::transform(&Command::name));
}

/// Throws UsageError unless a command of `list` was recognised below `app` and nothing stands in front of it. `group`:
/// "" or "measurements".
void require_command(const CLI::App& app, const std::vector<Command>& list, const std::string& group) {
  const auto found = app.remaining();
  const std::string where = group.empty() ? "" : group + ": ";
  if (found.empty() && !app.get_subcommands().empty()) return;
  if (found.empty())
    throw UsageError(where + "no command given, allowed: " + names_of(list) + " (see fp8 " + group +
                     (group.empty() ? "" : " ") + "--help)");
  if (found[0].size() > 1 && found[0][0] == '-')
    throw UsageError(where + "unknown option '" + found[0] +
                     "', allowed: --help, --version or a command: " + names_of(list));
  throw UsageError(where + "unknown command '" + found[0] + "', allowed: " + names_of(list));
}

/// CLI11 drops the dashes when a flag is given a value.
std::string message_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto end = text.find(" was given a disallowed flag override");
  return end == std::string::npos ? text : "--" + text.substr(0, end) + " takes no value";
}

struct Entry {
  CLI::App* app;
  const Command* command;
  Ranks ranks;
  std::unique_ptr<Options> options = nullptr;  ///< of the command that the command line names, else null
  Action action = nullptr;
};

/// ranks: of the group that `list` stands in. entries: groups stand before what is in them.
void add_commands(CLI::App& parent, const std::vector<Command>& list, Ranks ranks, Context& context,
                  std::deque<Entry>& entries) {
  parent.require_subcommand(0, 1);  // what follows a command belongs to it, a folder called "evaluate" too
  for (const auto& command : list) {
    auto* sub = parent.add_subcommand(command.name, command.summary);
    sub->allow_extras();
    sub->set_version_flag("--version", "fp8 " FP8_VERSION);
    sub->footer(std::string("Example:\n  ") + command.example);
    entries.push_back({sub, &command, ranks == Ranks::any ? command.ranks : ranks});
    if (command.add == nullptr) {
      add_commands(*sub, command.children, command.ranks, context, entries);
      continue;
    }
    sub->preparse_callback([&entry = entries.back(), &context](std::size_t) {
      entry.options = std::make_unique<Options>(*entry.app);
      entry.action = entry.command->add(*entry.options);
      entry.options->common(context);
    });
  }
}

/// A variable that can't mean anything would give other numbers than were asked for. doctor lists them all.
void refuse_environment() {
  const auto problems = environment_problems();
  if (!problems.empty())
    throw io::Error("environment: " + problems[0] + (problems.size() > 1 ? " (fp8 doctor lists more)" : ""));
}

/// "--trainer.max_steps 5" as "--trainer.max_steps=5": keys of files, which have dots or underscores as no option has,
/// have no row that says they take a value.
std::vector<std::string> with_joined_keys(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool key = word.starts_with("--") && word.find_first_of("._") != std::string_view::npos &&
                     word.find('=') == std::string_view::npos;
    const bool value = key && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--");
    arguments.push_back(std::string(word) + (value ? "=" + std::string(argv[i + 1]) : ""));
    i += value ? 1 : 0;
  }
  std::ranges::reverse(arguments);  // as CLI11 takes a vector
  return arguments;
}

int run_command(int argc, char** argv) {
  Context context;
  CLI::App app("Measure, quantize and run models in 8-bit floating point.", "fp8");
  app.set_version_flag("--version", "fp8 " FP8_VERSION);
  app.footer("Every command has --help with an example.");
  app.allow_extras();
  std::deque<Entry> entries;
  add_commands(app, commands(), Ranks::any, context, entries);
  try {
    app.parse(with_joined_keys(argc, argv));
  } catch (const CLI::CallForHelp&) {
    const auto text = app.help();
    write_stdout(text.back() == '\n' ? text : text + "\n");
    return 0;
  } catch (const CLI::CallForVersion& version) {
    write_stdout(std::string(version.what()) + "\n");
    return 0;
  }
  require_command(app, commands(), "");
  const Entry* named = nullptr;
  for (const auto& entry : entries) {
    if (!entry.app->parsed()) continue;
    if (entry.command->add == nullptr) require_command(*entry.app, entry.command->children, entry.command->name);
    if (entry.options != nullptr) named = &entry;
  }
  io::ensure(named != nullptr, "a command: require_command() found one");
  named->options->check();
  if (std::string_view(named->command->name) != "doctor") refuse_environment();
  if (!takes_part(named->ranks, named->command->name, context)) return 0;
  apply(context);
  const configs::CommandLineNames names;
  named->action(context);
  return 0;
}

}  // namespace

int run(int argc, char** argv) {
  install_signal_handlers();
  try {
    return run_command(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report(message_of(error), kUsage);
  } catch (const UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}

}  // namespace fp8::commands
