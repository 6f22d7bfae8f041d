// SPDX-License-Identifier: Apache-2.0
// y = x . w^T + b with all three products of training in fp8.
//
//   forward    x8 = cast(x), w8 = cast(w)   y  = x8 . w8^T * x_scale_inv * w_scale_inv + b     in the activation dtype
//   backward   g8 = cast(dy)                dx = g8 . w8    dw = g8^T . x8    db = sum of dy, unquantized
//
// All that backward needs (codes, scales, recipe, region, dialect) is fixed in the node at forward. A second derivative
// throws by name.
#pragma once

#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

struct Fp8LinearOptions {
  bool minimize_memory = false;                  ///< cast the weight again in backward instead of keeping its codes
  std::optional<bool> is_first_microbatch = {};  ///< default: the region's
  bool training = true;                          ///< amaxes may be recorded
  bool save_original_input = false;              ///< keep x instead of its codes, which backward casts again
};

/// x: [..., K] f32, bf16 or f16; weight: [N, K] f32, bf16, f16, or fp8 (runtime::QuantizedParameter); bias: [N] or
/// none. Result: [..., N] in the activation dtype: that of the autocast region in force, else x's. Needs an enabled
/// region; throws c10::Error naming the product for sizes and dtypes that do not fit.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      const std::shared_ptr<Fp8State>& state, const Fp8LinearOptions& options = {});

/// In a region that calibrates: records the amaxes of x and weight, computes nothing.
void record_operands(const at::Tensor& x, const at::Tensor& weight, const std::shared_ptr<Fp8State>& state);

}  // namespace fp8::te
