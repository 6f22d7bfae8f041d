// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/quantized_decomposed/quantized_decomposed.h"

#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sub.h>

#include <limits>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/cast/cast.h"

namespace fp8::runtime::ops {
namespace {

struct Bounds {
  std::int64_t min, max;
};

template <typename T>
constexpr Bounds bounds() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

Bounds bounds_of(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return bounds<std::int8_t>();
    case at::kByte:
      return bounds<std::uint8_t>();
    case at::kShort:
      return bounds<std::int16_t>();
    case at::kUInt16:
      return bounds<std::uint16_t>();
    case at::kInt:
      return bounds<std::int32_t>();
    case at::kFloat8_e4m3fn:
      return {-448, 448};
    case at::kFloat8_e5m2:
      return {-57344, 57344};
    default:
      TORCH_CHECK(false, "[quantized_decomposed] Unsupported dtype: ", type,
                  "; expected Char, Byte, Short, UInt16, Int, Float8_e4m3fn or Float8_e5m2");
  }
}

void check_range(const QuantRange& range) {
  const Bounds b = bounds_of(range.dtype);
  TORCH_CHECK(range.min >= b.min && range.max <= b.max, "[quantized_decomposed] expected quant_min >= ", b.min,
              " and quant_max <= ", b.max, " for ", range.dtype, ", got ", range.min, " and ", range.max);
}

/// Clamped to the range and converted: float8 by RNE, integers are whole already.
at::Tensor finished(const at::Tensor& v, const QuantRange& range) {
  const at::Tensor clamped = at::clamp(v, at::Scalar(range.min), at::Scalar(range.max));
  if (!is_fp8(range.dtype)) return clamped.to(range.dtype);
  return std::get<0>(cast_to_fp8_v2(clamped, Scale{}, false, false, range.dtype));
}

/// `t` as one element per index of `axis` of an input of `sizes`, shaped to broadcast against it.
at::Tensor along(const char* what, const at::Tensor& t, std::int64_t axis, at::IntArrayRef sizes,
                 const at::Tensor& like) {
  TORCH_CHECK(t.numel() == 1 || t.numel() == sizes[static_cast<std::size_t>(axis)], "[quantized_decomposed] expected ",
              what, " of 1 or ", sizes[static_cast<std::size_t>(axis)], " elements, got ", t.numel());
  std::vector<std::int64_t> shape(sizes.size(), 1);
  shape[static_cast<std::size_t>(axis)] = t.numel();
  return t.to(like.device()).reshape(shape);
}

std::int64_t wrapped(std::int64_t axis, const at::Tensor& input) {
  TORCH_CHECK(axis >= -input.dim() && axis < input.dim(), "[quantized_decomposed] expected axis in [", -input.dim(),
              ", ", input.dim() - 1, "], got ", axis);
  return axis < 0 ? axis + input.dim() : axis;
}

/// One element per token, as input's sizes with a last dimension of 1.
at::Tensor per_token(const char* what, const at::Tensor& t, const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 1, "[quantized_decomposed] expected an input of at least one dimension");
  auto sizes = input.sizes().vec();
  sizes.back() = 1;
  std::int64_t tokens = 1;
  for (const auto size : sizes) tokens *= size;
  TORCH_CHECK(t.numel() == 1 || t.numel() == tokens, "[quantized_decomposed] expected ", what, " of 1 or ", tokens,
              " elements, one per token, got ", t.numel());
  if (t.numel() == 1) sizes.assign(sizes.size(), 1);
  return t.to(input.device()).reshape(sizes);
}

/// x * (1 / scale) + zero_point, the scale in f32.
at::Tensor scaled_fp8(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point) {
  return at::add(at::mul(input.to(at::kFloat), at::reciprocal(scale.to(at::kFloat))), zero_point.to(at::kFloat));
}

at::Tensor values_of(const at::Tensor& codes) { return cast_from_fp8(codes, Scale{}, at::kFloat); }

}  // namespace

void check_quantize(const at::Tensor& input, const QuantRange& range) {
  TORCH_CHECK(is_high_precision(input.scalar_type()),
              "[quantized_decomposed] expected input of dtype Float, BFloat16 or Half, got ", input.scalar_type());
  check_range(range);
}

void check_dequantize(const at::Tensor& input, const QuantRange& range, at::ScalarType out_dtype) {
  (void)bounds_of(range.dtype);
  TORCH_CHECK(input.scalar_type() == range.dtype, "[quantized_decomposed] expected input of dtype ", range.dtype,
              ", got ", input.scalar_type());
  TORCH_CHECK(is_high_precision(out_dtype), "[quantized_decomposed] expected out_dtype Float, BFloat16 or Half, got ",
              out_dtype);
}

at::Tensor quantize_per_tensor(const at::Tensor& input, double scale, double zero_point, const QuantRange& range) {
  LeafScope leaf("quantized_decomposed::quantize_per_tensor", input);
  check_quantize(input, range);
  const at::Tensor x = input.to(at::kFloat);
  if (is_fp8(range.dtype)) return finished(at::add(at::div(x, at::Scalar(scale)), at::Scalar(zero_point)), range);
  return finished(at::add(at::round(at::mul(x, at::Scalar(1.0 / scale))), at::Scalar(zero_point)), range);
}

at::Tensor quantize_per_channel(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                                int64_t axis, const QuantRange& range) {
  LeafScope leaf("quantized_decomposed::quantize_per_channel", input);
  check_quantize(input, range);
  axis = wrapped(axis, input);
  const at::Tensor scale = along("scales", scales, axis, input.sizes(), input),
                   zero = along("zero_points", zero_points, axis, input.sizes(), input);
  if (is_fp8(range.dtype)) return finished(scaled_fp8(input, scale, zero), range);
  const at::Tensor x = input.to(at::kFloat);
  return finished(at::add(at::round(at::mul(x, at::reciprocal(scale))), zero), range);
}

at::Tensor quantize_per_token(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                              const QuantRange& range) {
  LeafScope leaf("quantized_decomposed::quantize_per_token", input);
  check_quantize(input, range);
  const at::Tensor scale = per_token("scales", scales, input), zero = per_token("zero_points", zero_points, input);
  if (is_fp8(range.dtype)) return finished(scaled_fp8(input, scale, zero), range);
  return finished(at::round(at::add(at::mul(input, at::reciprocal(scale)), zero)), range);
}

at::Tensor dequantize_per_tensor(const at::Tensor& input, double scale, double zero_point, const QuantRange& range,
                                 at::ScalarType out_dtype) {
  LeafScope leaf("quantized_decomposed::dequantize_per_tensor", input);
  check_dequantize(input, range, out_dtype);
  const at::Tensor x = is_fp8(range.dtype) ? values_of(input) : input.to(out_dtype);
  return at::mul(at::sub(x, at::Scalar(zero_point)), at::Scalar(scale)).to(out_dtype);
}

at::Tensor dequantize_per_channel(const at::Tensor& input, const at::Tensor& scales,
                                  const std::optional<at::Tensor>& zero_points, int64_t axis, const QuantRange& range,
                                  at::ScalarType out_dtype) {
  LeafScope leaf("quantized_decomposed::dequantize_per_channel", input);
  check_dequantize(input, range, out_dtype);
  axis = wrapped(axis, input);
  at::Tensor x = is_fp8(range.dtype) ? values_of(input) : input;
  at::Tensor scale = along("scales", scales, axis, input.sizes(), input);
  if (is_fp8(range.dtype)) scale = scale.to(at::kFloat);
  if (zero_points.has_value() && zero_points->defined())
    x = at::sub(x, along("zero_points", *zero_points, axis, input.sizes(), input));
  return at::mul(x, scale).to(out_dtype);
}

at::Tensor dequantize_per_token(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                                const QuantRange& range, at::ScalarType out_dtype) {
  LeafScope leaf("quantized_decomposed::dequantize_per_token", input);
  check_dequantize(input, range, out_dtype);
  const at::Tensor x = is_fp8(range.dtype) ? values_of(input) : input;
  const at::Tensor difference = at::sub(x, per_token("zero_points", zero_points, input));
  return at::mul(difference, per_token("scales", scales, input)).to(out_dtype);
}

}  // namespace fp8::runtime::ops
