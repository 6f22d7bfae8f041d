// SPDX-License-Identifier: Apache-2.0
// The cast: high precision -> Fp8Tensor, and back. All that is cast on the device is cast here, as a CastSpec says;
// kernels/cast.h and kernels/block_cast.h have the formulas. Results depend on neither threads nor SIMD level.
//
//   q = quantize(x, {.scale = 2, .scale_inv = 0.5})                                   static, one scale
//   q = quantize(x, {.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max})      one per token
//   q = quantize(x, {.layout = ScaleLayout::blocks(1, 32), .rule = ScaleRule::e8m0})           MX
//   [narrow, wide] = quantize_both(x, {.format = Format::E4M3}, {.format = Format::E5M2})      one pass over memory
//   [columns, rows] = quantize_both(x, {.scale = 2}, {.scale = 2, .transpose = true})          one cast, in two layouts
//   y = dequantize(q, at::kBFloat16)
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <utility>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

class LeafScope;
using kernels::CastSpec;
using kernels::ScaleRule;

/// x: f32, bf16 or f16 on hpu or cpu, any strides (rows that are not contiguous are copied first), at least the two
/// dimensions that blocks and columns need. The codes have x's sizes; a scale that amax_over_max makes of NaN or
/// infinity is NaN; of given scales for rows or columns the caller sets the grid. No autograd history. Throws
/// c10::Error for other dtypes and devices and for block sizes below 1, std::invalid_argument for a negative
/// amax_epsilon.
Fp8Tensor quantize(const at::Tensor& x, const CastSpec& spec);

/// Bit for bit what two calls give; given scales, one each: x is read once.
std::pair<Fp8Tensor, Fp8Tensor> quantize_both(const at::Tensor& x, const CastSpec& first, const CastSpec& second);

/// For operators, which are traced by their own names: `out` (codes of x's sizes, as the spec has them lie) is given,
/// scales too.
void cast_into(const at::Tensor& x, const CastSpec& spec, const at::Tensor& out);
void cast_into(const at::Tensor& x, const CastSpec& first, const at::Tensor& out, const CastSpec& second,
               const at::Tensor& second_out);

/// For kernels that cast what they make (cast_once.h, CastBeside): room for the codes of quantize(x, spec) and for the
/// scales that it makes; and what is to be done when both are written.
Fp8Tensor room_for_cast(const at::Tensor& x, const CastSpec& spec);
void finish_cast(const CastSpec& spec, const Fp8Tensor& result);

/// max |x| of any strides; NaN if any is.
float amax_of(const at::Tensor& x);

/// One of a cast's results, for note_cast(). codes: E4M3 or E5M2, dense in any order.
struct CastResult {
  const at::Tensor& codes;
  float max;  ///< where they saturate
};

/// Gives profilers the numbers of a cast: notes "amax" of x, and of each result "saturated", the share in [0, 1] of its
/// codes that are the format's largest ("saturated_2" of the second), where a listener wants numbers: one more pass
/// over each. Where scales come from the amax at least one code is. x: Float, BFloat16 or Half; at most two results.
void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results);

}  // namespace fp8::runtime
