// SPDX-License-Identifier: Apache-2.0
// fp8 checkpoints into a model: codes and scales of the quantized modules and of key-value caches; everything else is
// the caller's to load.
#pragma once
#include <set>

#include "fp8/measure/model/module_tree.h"
#include "fp8/recipes/scaling.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

struct LoadFp8Options {
  /// The dialect of the codes, where no fp8.json says it; where one does, gaudi2 is refused for codes of another
  /// dialect. If set, loading continues where the emulated device has another dialect: ocp codes (up to 448) on Gaudi2
  /// (240), which are refused otherwise.
  std::optional<recipes::Dialect> dialect;
  bool allow_nonfinite = false;                  ///< NaN and Inf codes are taken as they are
  std::vector<std::string>* warnings = nullptr;  ///< gets StoredCheckpoint::warnings
  /// Of a module in fp8: the model leaves it out on purpose (what looks at images), its tensors are not loaded.
  std::function<bool(const std::string& module)> left_out = {};
};

/// Attaches what the checkpoint holds in fp8, in any form of forms/form.h, to the modules of the same names; scales
/// of a cache "A.self_attn" to the nodes "A.self_attn.k_cache" and "v_cache". compute: what the modules compute in.
/// Returns the tensors that need not be loaded: those taken, and scales of nothing. Throws io::Error naming file and
/// tensor: shapes that do not fit, NaN codes, modules the model has not, forms not built, a dialect that the device
/// (FP8_HPU_DEVICE) has not.
std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules,
                               const std::vector<measure::OpNode>& nodes, const io::Checkpoint& checkpoint,
                               at::ScalarType compute, const LoadFp8Options& options = {});

}  // namespace fp8::quant
