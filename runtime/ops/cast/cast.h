// SPDX-License-Identifier: Apache-2.0
// hpu::cast_to_fp8, cast_to_fp8_v2, cast_to_fp8_hybrid, cast_from_fp8, calculate_scale_for_cast.
//
//   cast_to_fp8     q = round_fp8(x * scale): scale is first rounded to x's dtype, the product is rounded in x's dtype,
//                   then RNE to fp8, saturating at 240 (E4M3 on GAUDI2), 448 (E4M3 else) or 57344 (E5M2)
//   cast_from_fp8   y = x * scale, scale rounded to the output dtype: pass the INVERSE of the quantization scale
//   amax            max |x| of the unscaled input: f32, 0-dim if is_amax, else shape [0]
//
// Stochastic rounding is unbiased down to 0 ("stochastic flush to zero" below the smallest number). For bf16 -> E5M2
// PT_HPU_STOCHASTIC_ROUNDING_MODE=0 (default 1) makes products below the smallest number, 2^-16, 0; any other value of
// the variable is an error.
#pragma once

#include <tuple>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

/// 64 bits from the default generator of the CPU: the seed of one stochastic cast.
std::uint64_t draw_seed();

/// input: f32, bf16, f16 (any shape), or fp8 of the output's dtype without amax. Returns {fp8 of input's shape, amax}.
std::tuple<at::Tensor, at::Tensor> cast_to_fp8_v2(const at::Tensor& input, Scale scale, bool stochastic_rounding,
                                                  bool is_amax, at::ScalarType dtype);
/// The deprecated form: out (fp8, input's shape) and amax (written only if it has elements) are given.
std::tuple<at::Tensor&, at::Tensor&> cast_to_fp8(const at::Tensor& input, const std::optional<at::Tensor>& scale,
                                                 bool stochastic_rounding, at::Tensor& out, at::Tensor& amax);
/// e5m2 = round_fp8(input * scale_152), e4m3 = round_fp8(input * scale_143), and one amax of input for both, in one
/// pass over memory. input: f32 or bf16; none as a scale is 1. stochastic_rounding concerns e5m2 alone: forward
/// operands stay to nearest.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cast_to_fp8_hybrid(const at::Tensor& input,
                                                                  const std::optional<at::Tensor>& scale_152,
                                                                  const std::optional<at::Tensor>& scale_143,
                                                                  bool stochastic_rounding, bool is_amax);
/// out_dtype: f32, bf16 or f16.
at::Tensor cast_from_fp8(const at::Tensor& input, Scale scale, at::ScalarType out_dtype);
/// maxMode 0: v = input; 1: per-tensor amax (shape [1]); 2: amax along reduceAxis. With maxMode != 0, v / (fullscale *
/// backoff). scaleMode 1: 2^ceil(log2(v)). Result in input's dtype.
at::Tensor calculate_scale_for_cast(const at::Tensor& input, int64_t max_mode, int64_t scale_mode, int64_t reduce_axis,
                                    bool reduce_keepdim, double fullscale, double backoff);

}  // namespace fp8::runtime::ops
