// SPDX-License-Identifier: Apache-2.0
// aten::cat of plain tensors: rows of bytes one after the other.
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace fp8::runtime {

/// Contiguous tensors of one dtype and device whose sizes agree but along dim, and of 2^20 bytes at most together, are
/// copied at once. All else (an empty one among them, several dtypes, sizes that do not fit) goes to unboxed.h.
at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim);

}  // namespace fp8::runtime
