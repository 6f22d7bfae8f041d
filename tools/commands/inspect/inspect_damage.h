// SPDX-License-Identifier: Apache-2.0
// The damage part of `fp8 inspect`: what casting does to each module of a checkpoint, as JSON.
#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/options/input_options.h"

namespace fp8::commands {

struct DamageOptions : DataOptions {  ///< data empty: weights only
  DamageOptions() { samples = 16; }
  std::filesystem::path reference;
  std::string measurements;
  std::vector<std::string> include, exclude;
  std::optional<quant::WeightGranularity> scheme;
  bool weights_only = false;
};

/// Returns the plan that the options ask for, as quantize takes them.
quant::PlanOptions plan_options(const DamageOptions& options, const Context& context);

/// Of a checkpoint folder: in high precision, what quantizing it would do (to inputs too when there is data to run); in
/// fp8, what has been done; with a reference, how far it is from that. Sorted by damage, without SQNR by saturation.
/// Throws io::Error.
quant::CheckpointDamage checkpoint_damage(const std::filesystem::path& model, const DamageOptions& options,
                                          const Context& context);

/// Runs the data through a high precision model with probes on its weights: with LibTorch.
extern Late<quant::CheckpointDamage(const std::filesystem::path& model, const DamageOptions& options,
                                    const Context& context)>
    damage_of_run;

/// [{"name", "type", "scheme", "sqnr_db", "weight": {...}, "input": {...} | null}]; infinite and unknown numbers are
/// null.
io::Json damage_json(const std::vector<quant::ModuleDamage>& modules);

// The damage part of `fp8 inspect` for people: one sentence, the worst modules, and what stays in high precision.

/// Anchors of a module's SQNR in dB: a cast to E4M3 with a scale of amax gives some 31.5, to E5M2 some 25.5. Below
/// kFairDb a module is worth a second look, below kPoorDb it should stay in high precision.
inline constexpr double kPoorDb = 20, kFairDb = 25, kGoodDb = 30;

/// "28 modules, all within 1.5 dB (31.4 to 32.9); nothing to exclude", or how many are below an anchor and which is the
/// worst, and of how many values saturate, with the largest share of a module's. modules: sorted by damage.
std::string damage_sentence(const std::vector<quant::ModuleDamage>& modules);

/// One line a module, of the first `most` of them; columns that say whether they are of weight or input. width: of
/// Table::text().
std::string damage_table(const std::vector<quant::ModuleDamage>& modules, std::size_t most, std::size_t width);

/// One line for all modules that differ in their numbers alone and have one reason; empty for none. others: those in
/// fp8, which say what "*" means.
std::string kept_table(const std::vector<quant::SkippedModule>& kept, const std::vector<quant::ModuleDamage>& others,
                       std::size_t width);

// The plan of a checkpoint's modules, for people: modules that differ in their numbers alone are one line, whose name
// is that of names/folded_names.h.
//
//   module                            modules  becomes                       why
//   model.layers.*.self_attn.q_proj        28  E4M3 channel weights, ...
//   lm_head                                 1  stays in high precision       kept in high precision by default
//                                                                            (--include quantizes it)

/// Modules of one folded name and one fate.
struct PlanLine {
  std::string name;                  ///< stands for exactly these modules
  std::vector<std::string> modules;  ///< in the order of the report
  std::string scheme;                ///< empty: stays in high precision
  std::string reason;                ///< why it does
  std::uint64_t bytes = 0;           ///< of what stays, in the source
};
/// First what becomes fp8, then what does not.
/// folded: one line for the modules of all layers.
std::vector<PlanLine> plan_lines(const quant::CheckpointReport& report, bool folded = true);

/// `fp8 inspect DIR --plan`: prints what `fp8 quantize` would make of a checkpoint. Reads headers alone. Throws what
/// quantize_checkpoint() throws.
void print_plan(const std::filesystem::path& model, const DamageOptions& options, const Context& context);

}  // namespace fp8::commands
