// SPDX-License-Identifier: Apache-2.0
// The compressed-tensors checkpoint form that transformers and vLLM read. No torch here.
//
//   X.weight        F8_E4M3 [N, K]            X.weight_scale  F32 [1] | [N, 1]        X.input_scale  F32 [1] (static only)
//   config.json     quantization_config { quant_method, format, quantization_status: "compressed", config_groups, ignore }
//
// Every scale in the file is a scale_inv: w ~ code * weight_scale. "ignore" must name each Linear kept in high precision.
#pragma once
#include <string>
#include <vector>

#include "fp8/quant/plan.h"
#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::quant::compressed_tensors {

/// quantization_config of a checkpoint whose modules all have `scheme`; kept_linears: names for "ignore"; quantized: all names.
io::Json make_config(const Scheme& scheme, const std::vector<std::string>& quantized, const std::vector<std::string>& kept_linears);

/// A quantized module as stored.
struct StoredModule {
  std::string name;
  Scheme scheme;
  std::vector<float> weight_scale_inv;  ///< one value or one per row
};

/// What a checkpoint with this quantization_config holds. `sidecar` (fp8.json, may be null) tells dialect and convention; without one
/// the checkpoint is ocp, own convention. Throws io::Error naming file, tensor or key: schemes not built yet (block, group, int), scales
/// missing, of the wrong shape, not finite or not positive.
std::vector<StoredModule> read_modules(const io::Checkpoint& checkpoint, const io::Json& config, const io::Json& sidecar);

}  // namespace fp8::quant::compressed_tensors
