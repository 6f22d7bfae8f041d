// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose codes no config explains: weights in codes without a quantization_config, or in U8 and I8. They are
// refused with what was found, or read as the form that the user names. No torch here.
#pragma once

#include "fp8/quant/forms/form.h"

namespace fp8::quant {

/// Describes what a checkpoint holds in 8 bits, which only a quantization_config could explain: "7 weights in codes,
/// the first is m.weight F8_E4M3 [64, 32] with scales m.weight_scale F32 [1]". Empty: nothing. Tensors of whole numbers
/// count if scales stand beside them; known: those that something else explains.
std::string describe_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known = {});

/// Throws io::Error with describe_codes(), unless that is empty: for a checkpoint that should be in high precision.
void require_no_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known = {});

/// One weight in codes and its scale, as a form spells them.
struct AssumedWeight {
  std::string module;
  std::int64_t rows = 0, cols = 0;  ///< as stored
  std::vector<std::int64_t> scale;  ///< shape
  bool one = false;                 ///< a single scale
  bool exponents = false;           ///< its scales are bytes: E8M0, in U8 too
};

/// The weights of which a form makes the config that is missing (CheckpointForm::assumed_config); at least one.
struct AssumedWeights {
  const io::Checkpoint& checkpoint;
  std::vector<AssumedWeight> weights;

  template <class Test>
  bool all(Test test) const {
    return std::ranges::all_of(weights, test);
  }
  template <class Test>
  bool any(Test test) const {
    return std::ranges::any_of(weights, test);
  }
  /// True if a static scale of activations stands beside a weight.
  bool has_input_scales() const;
  /// The blocks of weights with a grid of scales. Throws io::Error if no size fits the grids of all.
  Block block() const;
};

struct AssumedCheckpoint {
  io::Json config;  ///< the folder's quantization_config, else one of that form as names and shapes of the scales tell
  StoredCheckpoint stored;
};

/// Reads a checkpoint as `form`. U8 and I8 weights with scales are E4M3 codes (in INC's form, of its fp8_config).
/// Without a quantization_config granularity and blocks follow from the shapes of the scales, activations are static
/// where input scales stand and dynamic elsewhere; dialect and convention are those of fp8.json, else the form's
/// defaults. Throws io::Error if the folder's config is of another form, if there are no codes, if the form can't be
/// assumed, naming the tensor whose scales the form spells otherwise, or if no size of blocks fits all scales.
AssumedCheckpoint read_assumed(const io::Checkpoint& checkpoint, const CheckpointForm& form);

}  // namespace fp8::quant
