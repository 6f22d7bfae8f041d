// SPDX-License-Identifier: Apache-2.0
// hpu::softmax_fp8.
//
//   y = softmax(x * inv_attn_heads * input_scale + fused_add) * output_scale      over the last dimension
//
// f32 inside, one rounding: to bf16 without scales, else to E4M3 as the device saturates. A row of -inf gives zeros.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::runtime::ops {

/// One element each, or none; both of input and output or none of them.
struct SoftmaxScales {
  Scale input, output, inv_attn_heads;
};

/// input: bf16, or E4M3 with scales. fused_add: bf16, of input's rank, first and last size equal to input's, the others
/// equal or 1; only with scales.
at::Tensor softmax_fp8(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                       const std::optional<at::Tensor>& fused_add);
at::Tensor softmax_fp8_meta(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                            const std::optional<at::Tensor>& fused_add);

}  // namespace fp8::runtime::ops
