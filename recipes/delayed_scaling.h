// SPDX-License-Identifier: Apache-2.0
// Delayed scaling as a value: the scale of this step comes from the largest magnitudes of earlier steps. State
// (histories) lives with whoever trains; here stand the settings only. Two dialects share the name and differ in
// every default:
//
//                       fp8_format  amax_history_len  amax_compute_algo  scale
//   habana()            E5M2        1                 most_recent        power of two
//   nvidia()            HYBRID      1024              max                any real number
//
//   scale = (fp8_max / amax) / 2^margin        one more of margin halves the scale
#pragma once
#include <cstdint>

#include "fp8/recipes/format.h"

namespace fp8::recipes {

/// Which entry of the history stands for the tensor.
enum class AmaxComputeAlgo : std::uint8_t { most_recent, max };

struct DelayedScaling {
  int margin = 0;                                                     ///< powers of two kept free
  int interval = 1;                                                   ///< steps from one new scale to the next
  RecipeFormat fp8_format = RecipeFormat::E5M2;
  int amax_history_len = 1;                                           ///< steps remembered
  AmaxComputeAlgo amax_compute_algo = AmaxComputeAlgo::most_recent;
  bool reduce_amax = true;                                            ///< maximum over all ranks
  bool power_of_two_scale = true;                                     ///< scale rounded down to a power of two

  bool operator==(const DelayedScaling&) const = default;

  /// The Gaudi dialect's defaults, the same as DelayedScaling{}.
  static constexpr DelayedScaling habana() { return {}; }

  /// The defaults of NVIDIA's Transformer Engine.
  static constexpr DelayedScaling nvidia() {
    return {.fp8_format = RecipeFormat::HYBRID, .amax_history_len = 1024, .amax_compute_algo = AmaxComputeAlgo::max,
            .power_of_two_scale = false};
  }
};

/// "most_recent", "max".
constexpr const char* name_of(AmaxComputeAlgo algo) {
  return algo == AmaxComputeAlgo::max ? "max" : "most_recent";
}

}  // namespace fp8::recipes
