// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint as weights, read a few megabytes at a time and checked.
#pragma once

#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {

/// One tensor of a checkpoint on the CPU, in its own dtype. Throws io::Error on a dtype that LibTorch lacks.
at::Tensor read_tensor(const io::Checkpoint& checkpoint, const std::string& name);

/// One weight: shape checked against `shape`, finite, converted to `dtype` on `device`. index: the weight is that
/// matrix of a stacked tensor [N, shape...]. Throws io::Error.
at::Tensor read_weight(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                       at::ScalarType dtype, at::Device device, std::optional<std::int64_t> index = std::nullopt,
                       bool allow_nonfinite = false);

/// Rows [first, first + rows) of a weight of `shape`, otherwise as read_weight().
at::Tensor read_weight_rows(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                            std::int64_t first, std::int64_t rows, at::ScalarType dtype, at::Device device);

struct ReadOptions {
  at::ScalarType dtype = at::kFloat;  ///< f32, bf16 or f16
  at::Device device = at::kCPU;
  bool allow_nonfinite = false;  ///< NaN and Inf are taken as they are, instead of refused
};

/// A parameter from wherever the checkpoint keeps it (quant/names/expert_weights.h), one piece in memory at a time
/// beside it.
at::Tensor read_parameter(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                          CausalLM::Storage storage, const ReadOptions& options);

/// Throws io::Error unless the checkpoint has what read_parameter() would read, in that shape.
void check_parameter(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                     CausalLM::Storage storage = {});

/// Throws io::Error unless the checkpoint has tensor `name`, which config.json promises: "num_hidden_layers 32".
void require_promised(const io::Checkpoint& checkpoint, const std::string& name, const std::string& promise);

/// Throws io::Error unless the checkpoint has the head `module`, which config.json does not tie to the words.
void require_head(const io::Checkpoint& checkpoint, const std::string& module);

/// True if the checkpoint has a weight for each of two modules, and they are not the same one: of other shapes, dtypes
/// or values. As in transformers a head that differs from the word table is not tied to it, whatever a config says.
bool has_other_weight(const io::Checkpoint& checkpoint, const std::string& module, const std::string& other);

/// LibTorch's dtype of a file's. Throws io::Error naming it (U16, U32, F8_E8M0 and others are not weights).
at::ScalarType scalar_type_of(io::DType dtype, const std::string& tensor);

/// "f32", "bf16", "f16".
const char* name_of_dtype(at::ScalarType dtype);

// GPT-OSS' experts as its files hold them, decoded when they are read. Of a stack NAME [E, in, out]:
//
//   NAME_blocks   U8 [E, out, in / 32, 16]   two E2M1 a byte, the first in the low nibble
//   NAME_scales   U8 [E, out, in / 32]       the exponent of 2 of 32 elements, plus 127
//
//   E2M1   s ee m   0  0.5  1  1.5  2  3  4  6      (OCP Microscaling Formats 1.0)

/// True if config.json names a quantization that load_quantized() reads: any but MXFP4, whose values are taken as
/// high precision ones.
bool is_quantized(const std::filesystem::path& folder);

/// Names of all tensors in these codes, for a folder whose config.json tells of MXFP4; else empty.
std::vector<std::string> mxfp4_tensors(const io::Checkpoint& checkpoint);

/// True if stack `name` is there in these codes.
bool has_mxfp4(const io::Checkpoint& checkpoint, const std::string& name);

/// The stack's values [E, in, out], one expert in memory at a time beside them. Throws io::Error for other shapes.
at::Tensor read_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                      at::ScalarType dtype, at::Device device);

/// Throws io::Error unless read_mxfp4() would find these shapes.
void check_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape);

}  // namespace fp8::models
