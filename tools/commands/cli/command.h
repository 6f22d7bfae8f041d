// SPDX-License-Identifier: Apache-2.0
// A command of the fp8 program: a row of the table in main.cpp. add() declares its options and returns what runs it.
#pragma once
#include <functional>
#include <vector>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/cli/ranks.h"

namespace fp8::commands {

using Action = std::function<void(Context&)>;

struct Command {
  const char* name;
  const char* summary;                  ///< one line of `fp8 --help`
  const char* example;                  ///< below `fp8 NAME --help`
  std::function<Action(Options&)> add;  ///< called when the command line names it; null: a group of commands
  Ranks ranks = Ranks::any;             ///< where a launcher started several processes; of a group: of all its children
  std::vector<Command> children = {};   ///< of a group: `fp8 GROUP NAME ...`
};

// None of these loads LibTorch: an action does where its work begins (late.h).
Action add_config(Options& options);
Action add_convert(Options& options);
Action add_doctor(Options& options);
Action add_embed(Options& options);
Action add_evaluate(Options& options);
Action add_generate(Options& options);
Action add_inspect(Options& options);
Action add_measure(Options& options);
Action add_quantize(Options& options);
Action add_run(Options& options);
Action add_train(Options& options);

/// The group `fp8 measurements`.
std::vector<Command> measurements_commands();

/// Parses the command line and runs the command. Returns the exit code: 0 ok, 1 failure, 2 wrong usage. Failures are
/// one line on stderr, "fp8: error: ...".
int run(int argc, char** argv);

}  // namespace fp8::commands
