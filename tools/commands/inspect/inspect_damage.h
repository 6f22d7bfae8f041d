// SPDX-License-Identifier: Apache-2.0
// The damage part of `fp8 inspect`: what casting does to each module of a checkpoint, as JSON.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"
#include "fp8/tools/commands/inputs/data_options.h"

namespace fp8::commands {

struct DamageOptions : DataOptions {  ///< data empty: weights only
  DamageOptions() { samples = 16; }
  std::filesystem::path reference;
  std::string measurements;
  std::vector<std::string> include, exclude;
  std::optional<quant::WeightGranularity> scheme;
  bool weights_only = false;
};

/// What the options ask for, as quantize would take them.
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

}  // namespace fp8::commands
