// SPDX-License-Identifier: Apache-2.0
// A part of the tokens of hidden states.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fp8::models {

/// Columns [first, first + count) of x [B, L, H], in memory one after the other. Of one text strides are those of its
/// columns alone: at::matmul takes those of a longer one for a batch's, for which it copies a weight.
inline at::Tensor columns_of(const at::Tensor& x, std::int64_t first, std::int64_t count) {
  const auto columns = x.narrow(1, first, count).contiguous();
  return columns.view(columns.sizes());
}

}  // namespace fp8::models
