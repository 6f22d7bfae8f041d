// SPDX-License-Identifier: Apache-2.0
// The cast: high precision -> Fp8Tensor, and back. All that is cast on the device is cast here; kernels/cast.h and
// kernels/block_cast.h have the formulas. Results depend on neither threads nor SIMD level.
//
//   q = quantize(x, {.scale = 2, .scale_inv = 0.5})                                   static, one scale
//   q = quantize(x, {.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max})      one per token
//   q = quantize(x, {.layout = ScaleLayout::blocks(1, 32), .rule = ScaleRule::e8m0})           MX
//   [narrow, wide] = quantize_both(x, {.format = Format::E4M3}, {.format = Format::E5M2})      one pass over memory
//   [columns, rows] = quantize_both(x, {.scale = 2}, {.scale = 2, .turned = true})             one cast, in two layouts
//   y = dequantize(q, at::kBFloat16)
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

/// Where scales come from.
enum class ScaleRule : std::uint8_t {
  given,
  amax_over_max,  ///< scale_inv = amax / fp8_max at the call: activations (with NaN or Inf: a NaN scale_inv)
  max_over_amax,  ///< scale = fp8_max / amax: blocks of training recipes
  e8m0,           ///< OCP MX: powers of two as E8M0, blocks of 1 x 32 or 32 x 1
};

struct CastSpec {
  kernels::Format format = kernels::Format::E4M3;
  kernels::Dialect dialect = kernels::Dialect::ocp;  ///< where it saturates: fp8_max(format, dialect)
  ScaleLayout layout = {};                           ///< given: per_tensor(), per_row() or per_column()
  ScaleRule rule = ScaleRule::given;
  float scale = 1.0f, scale_inv = 1.0f;  ///< given, per_tensor()
  const float* scales = nullptr;         ///< given, else: [rows] or [columns]; the grid is the caller's to set
  bool power_of_two = false;             ///< max_over_amax
  float amax_epsilon = 0.0f;             ///< max_over_amax: >= 0
  /// given: the arithmetic of hpu::cast_to_fp8_v2, which rounds `scale` (not `scales`) and the product to x's dtype.
  /// Otherwise x * scale is an f32 product that is rounded once, to fp8.
  bool vendor = false;
  std::optional<std::uint64_t> stochastic = {};  ///< seed; none: to nearest even
  bool flush_subnormal = false;                  ///< kernels::CastArgs
  float* amax = nullptr;                         ///< given: gets max |x|
  /// given, x of two dimensions: the codes lie column by column, as a product reads them that sums along the rows
  /// (codes.t() is contiguous).
  bool turned = false;

  /// Two casts of one x that must be the same.
  bool same_result(const CastSpec& other) const;
  /// The same codes, but for how they lie.
  bool same_codes(const CastSpec& other) const;
};

/// x: f32, bf16 or f16 on hpu or cpu, any strides (rows that are not contiguous are copied first), at least the two
/// dimensions that blocks and columns need. The codes have x's sizes. No autograd history. Throws c10::Error for other
/// dtypes and devices and for block sizes below 1, std::invalid_argument for a negative amax_epsilon.
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

/// codes * scales as `dtype` (f32, bf16 or f16): the f32 product, rounded once. Sizes and device of the codes. Throws
/// c10::Error where the grid does not fit the codes.
at::Tensor dequantize(const Fp8Tensor& x, at::ScalarType dtype);
/// The same for operators.
at::Tensor decode(const Fp8Tensor& x, at::ScalarType dtype);

}  // namespace fp8::runtime
