// SPDX-License-Identifier: Apache-2.0
// The cast: high precision -> Fp8Tensor, and back. All that is cast on the device is cast here, as a CastSpec says;
// kernels/cast.h has the formulas. Results depend on neither threads nor SIMD level.
//
//   q = quantize(x, {.scale = 2, .scale_inv = 0.5})                                   static, one scale
//   q = quantize(x, {.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max})      one per token
//   q = quantize(x, {.layout = ScaleLayout::blocks(1, 32), .rule = ScaleRule::e8m0})           MX
//   [narrow, wide] = quantize_both(x, {.format = Format::E4M3}, {.format = Format::E5M2})      one pass over memory
//   [columns, rows] = quantize_both(x, {.scale = 2}, {.scale = 2, .transpose = true})          one cast, in two layouts
//   y = dequantize(q, at::kBFloat16)
#pragma once
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

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

/// max |x| of any strides; NaN if any is.
float amax_of(const at::Tensor& x);

/// One of a cast's results, for note_cast(). codes: E4M3 or E5M2, dense in any order.
struct CastResult {
  const at::Tensor& codes;
  float max;  ///< magnitude at which they saturate
};

/// Gives profilers the numbers of a cast: notes "amax" of x, and of each result "saturated", the share in [0, 1] of its
/// codes that are the format's largest ("saturated_2" of the second), where a listener wants numbers: one more pass
/// over each. Where scales come from the amax at least one code is. x: Float, BFloat16 or Half; at most two results.
void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results);

// Products that share an input cast it once: q, k and v, gate and up, all that have the same scale. What a tensor was
// cast to last is kept with its memory (device/block.h) and goes with it.
//
//   q = cast_once(x, x, spec)     casts          k = cast_once(x, x, spec)    takes q's codes
//   x.add_(1)                                    v = cast_once(x, x, spec)    casts again
//
// "The same tensor" is the same TensorImpl at the same version: an in-place operation through any view makes it
// another, as for autograd's saved tensors (a write through Tensor::data goes unnoticed, as there). Tensors made in
// InferenceMode have no version, and are cast each time; codes of others are ordinary tensors there, too, as a step of
// training may take them.

/// While it lives, what is made in InferenceMode is made without it, and without gradients: what is kept for later
/// calls, which may be of training.
class OrdinaryTensors {
 public:
  OrdinaryTensors() {
    if (!c10::InferenceMode::is_enabled()) return;
    outside_.emplace(false);
    no_grad_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> outside_;
  std::optional<at::NoGradGuard> no_grad_;
};

/// quantize(values, spec); `values` is what the caller made of `x` (another dtype, contiguous, other sizes). The codes
/// are shared and must not be written into. Stochastic casts and those with many given scales are never shared.
Fp8Tensor cast_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& spec);
/// Keeps `result`, which quantize(x, spec) is known to be and which the next cast_once(x, x, spec) gives.
void keep_cast(const at::Tensor& x, const CastSpec& spec, const Fp8Tensor& result);
/// cast_once() of quantize_both().
std::pair<Fp8Tensor, Fp8Tensor> cast_both_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& first,
                                               const CastSpec& second);
/// amax_of(values).
float amax_once(const at::Tensor& x, const at::Tensor& values);

// The cast of a tensor by the kernel that writes it, row by row (kernels/cast.h, cast_row), where it's known what the
// next product will cast it to: no pass of its own over memory.
//
//   const CastBeside cast(y, next);   room for the codes
//   args.cast = cast.rows();          kernels::rms_norm(args) writes y and its codes
//   cast.keep();                      the product's cast_once(y, y, *next) takes them
//
// The codes are those of quantize(y, *next), to the bit: another cast of y is made when it is asked for, as without.

/// The cast that the next product makes of a tensor (linear_together.h, input_cast); none: not known, or there is none.
using NextCast = std::optional<CastSpec>;

class CastBeside {
 public:
  /// y: [..., n], contiguous, bf16, f16 or f32. No cast where `next` is none, or not one of rows (given: one scale;
  /// amax_over_max: one per row), or y's casts can't be kept.
  CastBeside(const at::Tensor& y, const NextCast& next);
  /// Valid while this lives.
  kernels::CastArgs rows() const;
  /// Once the kernel has run.
  void keep() const;

 private:
  const at::Tensor& y_;
  const CastSpec* spec_ = nullptr;  ///< null: no cast
  Fp8Tensor result_;
};

}  // namespace fp8::runtime
