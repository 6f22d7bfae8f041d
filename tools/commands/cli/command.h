// SPDX-License-Identifier: Apache-2.0
// A command of the fp8 program: a row of the table in command.cpp. add() declares its options and returns what
// runs it.
#pragma once

#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

using Action = std::function<void(Context&)>;

struct Command {
  const char* name;
  const char* summary;                  ///< one line of `fp8 --help`
  const char* example;                  ///< below `fp8 NAME --help`; a line each
  std::function<Action(Options&)> add;  ///< called when the command line names it; null: a group of commands
  Ranks ranks = Ranks::any;             ///< which processes of a launcher run it; of a group: of all its children
  std::vector<Command> children = {};   ///< of a group: `fp8 GROUP NAME ...`
};

// None of these loads LibTorch: an action does where its work begins (context.h).
Action add_completion(Options& options);
Action add_config(Options& options);
Action add_convert(Options& options);
Action add_doctor(Options& options);
Action add_embed(Options& options);
Action add_evaluate(Options& options);
Action add_generate(Options& options);
Action add_inspect(Options& options);
Action add_man(Options& options);
Action add_measure(Options& options);
Action add_quantize(Options& options);
Action add_run(Options& options);
Action add_train(Options& options);

/// The group `fp8 measurements`.
std::vector<Command> measurements_commands();

/// The table, in the order of the help.
const std::vector<Command>& commands();

/// The options of a command that is no group, and what it does.
class Parser {
 public:
  /// name: "measurements merge". context: outlives it.
  Parser(const Command& command, const std::string& name, Context& context);
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  CLI::App& app() { return app_; }
  Options& options() { return options_; }
  const Options& options() const { return options_; }
  const Action& action() const { return action_; }

 private:
  CLI::App app_;
  Options options_;
  Action action_;
};

/// What `fp8 help NAME` explains that is no command.
struct Topic {
  const char* name;
  const char* summary;
  std::string (*text)(std::size_t width);
};
/// The table, in the order of the help (topics.cpp).
const std::vector<Topic>& topics();
/// quantize/preset.cpp.
std::string preset_text(std::size_t width);

/// "fp8 evaluate a --reference b": what was given, paths without their folders.
std::string shown_command(const std::string& command, const Options& options);

/// A command as help, completions and man pages show it; group: "measurements" or "".
CommandPage page_of(const Command& command, const std::string& group);
/// With all commands, and all of their options.
CommandPage page_of_program();

/// The commit that was built, "" where it is not known. In the program alone (tools/cmake/fp8_commit.cmake).
extern const char kCommit[];

/// Parses the command line and runs the command. commit: what --version adds, "" where it is not known. Returns the
/// exit code, of kExitCodes. Failures are one line on stderr, "fp8: error: ...".
int run(int argc, char** argv, const char* commit = "", const Sandbox& sandbox = {});

}  // namespace fp8::commands
