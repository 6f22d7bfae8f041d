// SPDX-License-Identifier: Apache-2.0
// hpu::convert_from_int4, convert_from_uint4 and fake_quant_fp4.
//
//   convert   int32 word = n7 n6 n5 n4 n3 n2 n1 n0, four bits each, n0 the first element; two's complement for int4
//             y = (n - zero_point) * scale in out_dtype's arithmetic; a packed zero_point (int32) is subtracted
//             exactly; float8 outputs are computed in f32 and saturate
//
//   fake_quant_fp4   y = round_fp4(x * (1 / s)) * s, s = f32(amax / max) of each slice at one index of `axis`
//             fp4_e2m1   s ee m   bias 1   0 0.5 1 1.5 2 3 4 6         max 6
//             fp4_e3m0   s eee    bias 3   0 0.25 0.5 1 2 4 8 16       max 16
//             to nearest, ties to the even code; stochastic: up with the probability of the distance, below the
//             smallest value too. The vendor's kernel is closed: names and rounding modes are its, the scale's formula
//             is ours.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace fp8::runtime::ops {

/// input: int32 [..., n]; result [..., 8n] of out_dtype (f32, bf16, f16 or float8). scale and an unpacked zero_point:
/// any shape that broadcasts to the result, or [G, 8n] for a 2-D input [R, n] with R a multiple of G (groups of R / G
/// rows). A packed zero_point is int32, its last dimension an eighth of what it stands for.
at::Tensor convert_from_int4(const at::Tensor& input, const at::Tensor& scale,
                             const std::optional<at::Tensor>& zero_point, at::ScalarType out_dtype, bool is_signed);
at::Tensor convert_from_int4_meta(const at::Tensor& input, at::ScalarType out_dtype);

/// input: f32, bf16 or f16, at least 1-D; axis: -dim .. dim - 1. Result in input's dtype. A slice of zeros stays zeros,
/// one with a NaN or an infinity becomes NaN. Stochastic bits depend on the generator's seed and the element alone.
at::Tensor fake_quant_fp4(const at::Tensor& input, bool stochastic_rounding, int64_t axis, std::string_view dtype);
at::Tensor fake_quant_fp4_meta(const at::Tensor& input, int64_t axis, std::string_view dtype);

}  // namespace fp8::runtime::ops
