// SPDX-License-Identifier: Apache-2.0
// fp8 checkpoints into a model: codes and scales of the quantized modules and of key-value caches; everything else is the caller's to load.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "fp8/measure/module_tree.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::quant {

/// Attaches what the checkpoint holds in fp8, in any form of formats/form.h, to the modules of the same names; scales of a cache "A.self_attn" to
/// the nodes "A.self_attn.k_cache" and "v_cache". compute: what the modules compute in. Returns the tensors that need not be loaded: those
/// taken, and scales of nothing. Throws io::Error naming file and tensor: shapes that do not fit, NaN codes, modules the model has not, forms
/// not built.
std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes, const io::Checkpoint& checkpoint,
                               at::ScalarType compute);

}  // namespace fp8::quant
