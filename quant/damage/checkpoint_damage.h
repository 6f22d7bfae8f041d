// SPDX-License-Identifier: Apache-2.0
// The damage report of a checkpoint folder, read in chunks: memory stays bounded whatever the model's size. No torch
// here.
#pragma once

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/damage/damage.h"

namespace fp8::quant {

struct CheckpointDamage {
  std::vector<ModuleDamage> modules;  ///< weights only; in the checkpoint's order
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
};

/// The damage that quantizing the high precision checkpoint `model` by `options` would do to its weights, of which
/// options.progress counts the bytes twice. Modules with NaN or Inf are skipped. Throws io::Error naming file and
/// tensor, and as quantize_checkpoint does.
CheckpointDamage damage_of_checkpoint(const std::filesystem::path& model, const CheckpointOptions& options);

/// The damage to the weights of the fp8 checkpoint `model`: amax, zeros and saturated codes.
///
/// saturated: there are only codes here: as many as stand at the format's largest value *beyond what a scale of amax
/// gives*. Such a scale (scale_inv = amax / fp8_max) puts the amax of everything that shares it there, once per scale:
/// per row if scales are per channel, but once in all of the weight if it has one scale (not once per row: other rows
/// end below it; and not at all where q, k and v share the scale of another's amax). With it goes what rounds to the
/// largest value, from an interval half as wide as the next code's, so at most half as many as that has, where values
/// get rarer outwards. The count is what is left of
///
///   codes at the largest value - scales with one - codes at the next value / 2
///
/// if that is beyond chance (three standard deviations), else 0: a lower bound of what was clipped.
CheckpointDamage damage_of_fp8_checkpoint(const std::filesystem::path& model, const std::function<bool()>& stop);

/// As above, beside a reference, the checkpoint that it was made of, or any other: also underflow and SQNR, and
/// saturated are values of the reference more than 2^-8 beyond what the scale leaves room for. Either may be in fp8 or
/// in high precision; of a model in high precision its matrices are compared. Throws io::Error for a matrix that the
/// reference has not, or in another shape.
CheckpointDamage compare_checkpoints(const std::filesystem::path& model, const std::filesystem::path& reference,
                                     const std::function<bool()>& stop);

}  // namespace fp8::quant
