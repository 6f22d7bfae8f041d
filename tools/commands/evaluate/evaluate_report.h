// SPDX-License-Identifier: Apache-2.0
// What `fp8 evaluate` prints: of one model a table of its numbers, of several a row each.
#pragma once
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/evaluate/scoring.h"

namespace fp8::commands {

/// Returns what --json says of one model; keys without a value where the model or the options have none.
io::Json numbers_of(const EvaluateOptions& options, const Context& context, const std::filesystem::path& folder,
                    const models::LoadedModel& model, const Samples& samples, const Evaluation& evaluation);

/// Prints the numbers of one model, or of several with what they share: {"models": [...], ...}. more: members of the
/// JSON.
void print_evaluations(const EvaluateOptions& options, const Context& context, const std::vector<io::Json>& numbers,
                       const io::Json& more);

}  // namespace fp8::commands
