// SPDX-License-Identifier: Apache-2.0
// What becomes fp8 and what does not, for people: modules that differ in their numbers alone are one line.
//
//   module                            modules  becomes                       why
//   model.layers.*.self_attn.q_proj        28  E4M3 channel weights, ...
//   lm_head                                 1  stays in high precision       kept in high precision by default
//                                                                            (--include quantizes it)
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/inspect/inspect_damage.h"

namespace fp8::commands {

/// Modules of one folded name and one fate.
struct PlanLine {
  std::string name;                  ///< folded where it stands for several
  std::vector<std::string> modules;  ///< in the order of the report
  std::string scheme;                ///< empty: stays in high precision
  std::string reason;                ///< why it does
  std::uint64_t bytes = 0;           ///< of what stays, in the source
};
/// First what becomes fp8, then what does not.
std::vector<PlanLine> plan_lines(const quant::CheckpointReport& report);

/// `fp8 inspect DIR --plan`: what `fp8 quantize` would make of a checkpoint. Reads headers alone. Throws what
/// quantize_checkpoint() throws.
Inspection inspect_plan(const std::filesystem::path& model, const DamageOptions& options, const Context& context);

}  // namespace fp8::commands
