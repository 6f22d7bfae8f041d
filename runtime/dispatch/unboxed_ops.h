// SPDX-License-Identifier: Apache-2.0
// The operations of the fallback that have a kernel without a stack (unboxed.h).
#pragma once
#include <torch/library.h>

#include <string>

namespace fp8::runtime {

/// full: "aten::mean.dim".
bool has_unboxed_kernel(const std::string& full);
void register_unboxed_kernels(torch::Library& aten);

}  // namespace fp8::runtime
