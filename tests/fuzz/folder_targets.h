// SPDX-License-Identifier: Apache-2.0
// Targets of several files (targets.h).
#pragma once
#include <string_view>

namespace fp8::fuzz {

/// A zip whose members are the files of a checkpoint's folder, which is quantized: config, index, shards, side files.
void checkpoint(std::string_view data);
/// The same with a QUANT_CONFIG, quant.json, and its measurements, stats_hooks_maxabs.*.
void calibrated(std::string_view data);
/// Edits of the sidecar and the journal that --resume finds; the result must be that of an undisturbed run.
void resumed(std::string_view data);
/// The same of the shares that --join finds.
void joined(std::string_view data);

}  // namespace fp8::fuzz
