// SPDX-License-Identifier: Apache-2.0
// Which model a measurement is of: name, shape and 32 sampled values of every weight. Of another model, its amax values
// are worthless, and nothing in INC's files would tell. No torch here.
//
//   sample i of n elements, 32 in all: element i * (n - 1) / 31 in row-major order, as float32
//
// Values, not a checksum: a model measured in bf16 and quantized from its f32 checkpoint is still the same model.
// Weights of one dtype must agree exactly, of two to within 2^-7 of the larger.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::measure {

struct WeightFingerprint {
  std::string module;  ///< "model.layers.0.mlp.up_proj"
  std::string dtype;   ///< "bf16", as kernels::name_of
  std::vector<std::int64_t> shape;
  std::vector<float> samples;  ///< at most 32
};

struct ModelFingerprint {
  std::vector<WeightFingerprint> weights;

  const WeightFingerprint* find(const std::string& module) const;
  /// 16 hex digits over all of it.
  std::string digest() const;
};

/// Element positions that are sampled of a weight with `numel` elements.
std::vector<std::int64_t> sampled_positions(std::int64_t numel);

/// Of a dense weight in memory.
WeightFingerprint fingerprint_of(const std::string& module, const void* data, kernels::FloatType type,
                                 const std::vector<std::int64_t>& shape);

/// Of a checkpoint's tensor `tensor` (F32, BF16 or F16; else io::Error).
WeightFingerprint fingerprint_of(const std::string& module, const io::Checkpoint& checkpoint,
                                 const std::string& tensor);

/// Throws io::Error "WHERE: MODULE.weight ..., a measurement of another model?" for a module of both whose shape or
/// values differ. Modules of only one of them are not looked at: a plan knows what it needs.
void require_same_model(const ModelFingerprint& measured, const ModelFingerprint& model, const std::string& where);

/// {module: {"dtype", "shape", "samples"}}.
io::Json to_json(const ModelFingerprint& model);

/// Throws io::Error naming key and module; `where` stands before.
ModelFingerprint model_from_json(const io::Json& json, const std::string& where);

}  // namespace fp8::measure
