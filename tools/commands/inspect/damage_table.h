// SPDX-License-Identifier: Apache-2.0
// The damage part of `fp8 inspect` for people: one sentence, the worst modules, and what stays in high precision.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "fp8/quant/damage/checkpoint_damage.h"

namespace fp8::commands {

/// Anchors of a module's SQNR in dB: a cast to E4M3 with a scale of amax gives some 31.5, to E5M2 some 25.5. Below
/// kFairDb a module is worth a second look, below kPoorDb it should stay in high precision.
inline constexpr double kPoorDb = 20, kFairDb = 25, kGoodDb = 30;

/// "28 modules, all within 1.5 dB (31.4 to 32.9); nothing to exclude", or how many are below an anchor and which is the
/// worst, and how many saturate. modules: sorted by damage.
std::string damage_sentence(const std::vector<quant::ModuleDamage>& modules);

/// One line a module, of the first `most` of them; columns that say whether they are of weight or input. width: of
/// Table::text().
std::string damage_table(const std::vector<quant::ModuleDamage>& modules, std::size_t most, std::size_t width);

/// One line for all modules that differ in their numbers alone and have one reason; empty for none.
std::string kept_table(const std::vector<quant::SkippedModule>& kept, std::size_t width);

}  // namespace fp8::commands
