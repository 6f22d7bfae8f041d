// SPDX-License-Identifier: Apache-2.0
// GPT-OSS' experts as its files hold them, decoded when they are read. Of a stack NAME [E, in, out]:
//
//   NAME_blocks   U8 [E, out, in / 32, 16]   two E2M1 a byte, the first in the low nibble
//   NAME_scales   U8 [E, out, in / 32]       the exponent of 2 of 32 elements, plus 127
//
//   E2M1   s ee m   0  0.5  1  1.5  2  3  4  6      (OCP Microscaling Formats 1.0)
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::models {

/// Whether config.json tells of a quantization that load_quantized() reads: any but MXFP4, whose values are taken as
/// high precision ones.
bool is_quantized(const std::filesystem::path& folder);

/// Names of all tensors in these codes, for a folder whose config.json tells of MXFP4; else empty.
std::vector<std::string> mxfp4_tensors(const io::Checkpoint& checkpoint);

/// Whether stack `name` is there in these codes.
bool has_mxfp4(const io::Checkpoint& checkpoint, const std::string& name);

/// The stack's values [E, in, out], one expert in memory at a time beside them. Throws io::Error for other shapes.
at::Tensor read_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                      at::ScalarType dtype, at::Device device);

/// Throws io::Error unless read_mxfp4() would find these shapes.
void check_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape);

}  // namespace fp8::models
