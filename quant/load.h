// SPDX-License-Identifier: Apache-2.0
// fp8 checkpoints into a model: codes and scales of the quantized modules; everything else is the caller's to load.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "fp8/measure/module_tree.h"
#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::quant {

/// Attaches what the checkpoint holds in fp8 to the modules of the same names; `quantization_config` is that of its config.json, fp8.json
/// is read when it is there. compute: what the modules compute in. Returns the tensors taken. Throws io::Error naming file and tensor:
/// shapes that do not fit, NaN codes, modules the model has not, forms not built yet.
std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules, const io::Checkpoint& checkpoint, const io::Json& quantization_config,
                               at::ScalarType compute);

}  // namespace fp8::quant
