// SPDX-License-Identifier: Apache-2.0
// Two calibrations side by side, and the step that vLLM's attention needs before its measurements are used. No torch
// here.
#pragma once
#include <string>
#include <vector>

#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

/// How one tensor changed: the largest change of its values.
struct Change {
  std::string module, tensor;  ///< tensor: "inputs[0]", "outputs[1]", "weight"
  float before = 0, after = 0;
  double ratio = 1;  ///< after / before; infinity from 0, 1 for 0 and 0
};

struct Difference {
  std::vector<Change> changes;              ///< of every tensor in both, the largest change first (either direction)
  std::vector<std::string> missing, added;  ///< modules or tensors in the first only, in the second only
  /// Tensors whose ratio is outside [1 / (1 + tolerance), 1 + tolerance].
  std::size_t beyond(double tolerance) const;
  bool same(double tolerance) const { return missing.empty() && added.empty() && beyond(tolerance) == 0; }
};

/// Tensors of different sizes (per channel against per tensor) are compared by their largest values.
Difference compare(const std::vector<Measurement>& before, const std::vector<Measurement>& after);

/// In vLLM, keys and values reach the attention's products from the cache, which also holds what other requests wrote:
/// their range is what the cache measured. For every P.matmul_qk, inputs[1] := P.k_cache.inputs[0]; for P.matmul_av,
/// inputs[1] := P.v_cache.inputs[0]. Where there is P.latent_cache_k instead (DeepSeek), it is both. Products without
/// such a cache beside them stay. Returns the modules that changed.
std::vector<std::string> apply_cache_ranges(std::vector<Measurement>& modules);

}  // namespace fp8::measure
