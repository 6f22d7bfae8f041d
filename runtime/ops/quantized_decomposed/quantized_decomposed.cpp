// SPDX-License-Identifier: Apache-2.0
// quantized_decomposed::{quantize,dequantize}_per_{tensor,channel,token} on hpu.
//
//   float8     q = RNE(clamp(x / scale + zero_point, quant_min, quant_max)): not rounded to integers; f32 arithmetic,
//              saturating as the device does. Per channel and per token x * (1 / scale), as the device does.
//              y = (q - zero_point) * scale in f32, rounded once to the output dtype
//   integers   as PyTorch defines the ops: rounded to integers, its arithmetic step by step
//
// int8, uint8, int16, uint16, int32, float8_e4m3fn and float8_e5m2; quant_min and quant_max within the dtype's bounds.
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sub.h>
#include <dlfcn.h>

#include <iterator>
#include <limits>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/cast/cast.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;

/// The quantized side: its dtype and the range codes are clamped to.
struct QuantRange {
  std::int64_t min = 0, max = 0;
  at::ScalarType dtype = at::kChar;
};

struct Bounds {
  at::ScalarType type;
  std::int64_t min, max;
};

template <typename T>
constexpr Bounds bounds(at::ScalarType type) {
  return {type, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

constexpr Bounds kBounds[] = {bounds<std::int8_t>(at::kChar),   bounds<std::uint8_t>(at::kByte),
                              bounds<std::int16_t>(at::kShort), bounds<std::uint16_t>(at::kUInt16),
                              bounds<std::int32_t>(at::kInt),   {at::kFloat8_e4m3fn, -448, 448},
                              {at::kFloat8_e5m2, -57344, 57344}};

const Bounds& bounds_of(at::ScalarType type) {
  const auto* found = std::ranges::find(kBounds, type, &Bounds::type);
  TORCH_CHECK(found != std::end(kBounds), "[quantized_decomposed] Unsupported dtype: ", type,
              "; expected Char, Byte, Short, UInt16, Int, Float8_e4m3fn or Float8_e5m2");
  return *found;
}

void check_range(const QuantRange& range) {
  const Bounds& b = bounds_of(range.dtype);
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

void check_quantize(const at::Tensor& input, const QuantRange& range) {
  check_high_precision("quantized_decomposed", "input of dtype", input.scalar_type());
  check_range(range);
}

void check_dequantize(const at::Tensor& input, at::ScalarType type, at::ScalarType out_dtype) {
  (void)bounds_of(type);
  TORCH_CHECK(input.scalar_type() == type, "[quantized_decomposed] expected input of dtype ", type, ", got ",
              input.scalar_type());
  check_high_precision("quantized_decomposed", "out_dtype", out_dtype);
}

/// input: f32, bf16 or f16; result of range.dtype and input's sizes.
at::Tensor quantize_per_tensor(const at::Tensor& input, double scale, double zero_point, const QuantRange& range) {
  LeafScope leaf("quantized_decomposed::quantize_per_tensor", input);
  check_quantize(input, range);
  const at::Tensor x = input.to(at::kFloat);
  if (is_fp8(range.dtype)) return finished(at::add(at::div(x, at::Scalar(scale)), at::Scalar(zero_point)), range);
  return finished(at::add(at::round(at::mul(x, at::Scalar(1.0 / scale))), at::Scalar(zero_point)), range);
}

/// scales, zero_points: one element per index of `axis` (negative counts from the end); one element stands for all.
Tensor quantize_per_channel(const Tensor& input, const Tensor& scales, const Tensor& zero_points, int64_t axis,
                            int64_t min, int64_t max, at::ScalarType type) {
  const QuantRange range{min, max, type};
  LeafScope leaf("quantized_decomposed::quantize_per_channel", input);
  check_quantize(input, range);
  axis = wrapped(axis, input);
  const at::Tensor scale = along("scales", scales, axis, input.sizes(), input),
                   zero = along("zero_points", zero_points, axis, input.sizes(), input);
  if (is_fp8(range.dtype)) return finished(scaled_fp8(input, scale, zero), range);
  const at::Tensor x = input.to(at::kFloat);
  return finished(at::add(at::round(at::mul(x, at::reciprocal(scale))), zero), range);
}

/// scales, zero_points: one element per token, which is a row of the last dimension; one element stands for all.
Tensor quantize_per_token(const Tensor& input, const Tensor& scales, const Tensor& zero_points, int64_t min,
                          int64_t max, at::ScalarType type) {
  const QuantRange range{min, max, type};
  LeafScope leaf("quantized_decomposed::quantize_per_token", input);
  check_quantize(input, range);
  const at::Tensor scale = per_token("scales", scales, input), zero = per_token("zero_points", zero_points, input);
  if (is_fp8(range.dtype)) return finished(scaled_fp8(input, scale, zero), range);
  return finished(at::round(at::add(at::mul(input, at::reciprocal(scale)), zero)), range);
}

/// input: of `type`; result of out_dtype (f32, bf16 or f16).
at::Tensor dequantize_per_tensor(const at::Tensor& input, double scale, double zero_point, at::ScalarType type,
                                 at::ScalarType out_dtype) {
  LeafScope leaf("quantized_decomposed::dequantize_per_tensor", input);
  check_dequantize(input, type, out_dtype);
  const at::Tensor x = is_fp8(type) ? values_of(input) : input.to(out_dtype);
  return at::mul(at::sub(x, at::Scalar(zero_point)), at::Scalar(scale)).to(out_dtype);
}

Tensor dequantize_per_channel(const Tensor& input, const Tensor& scales, const OptionalTensor& zero_points,
                              int64_t axis, int64_t, int64_t, at::ScalarType type, OptionalType out) {
  const at::ScalarType out_dtype = out.value_or(at::kFloat);
  LeafScope leaf("quantized_decomposed::dequantize_per_channel", input);
  check_dequantize(input, type, out_dtype);
  axis = wrapped(axis, input);
  at::Tensor x = is_fp8(type) ? values_of(input) : input;
  at::Tensor scale = along("scales", scales, axis, input.sizes(), input);
  if (is_fp8(type)) scale = scale.to(at::kFloat);
  if (zero_points.has_value() && zero_points->defined())
    x = at::sub(x, along("zero_points", *zero_points, axis, input.sizes(), input));
  return at::mul(x, scale).to(out_dtype);
}

Tensor dequantize_per_token(const Tensor& input, const Tensor& scales, const Tensor& zero_points, int64_t, int64_t,
                            at::ScalarType type, at::ScalarType out_dtype) {
  LeafScope leaf("quantized_decomposed::dequantize_per_token", input);
  check_dequantize(input, type, out_dtype);
  const at::Tensor x = is_fp8(type) ? values_of(input) : input;
  const at::Tensor difference = at::sub(x, per_token("zero_points", zero_points, input));
  return at::mul(difference, per_token("scales", scales, input)).to(out_dtype);
}

// quantized_decomposed:: on hpu. The schemas belong to PyTorch's Python package (torch.ao), which defines them when it
// is imported and would refuse to if that was done before. So with a Python interpreter in the process only
// kernels are added here; without one no other code can define them, and this library does, meta functions included.

/// The value of an argument, which is a number or a tensor of one element.
double number(const char*, double value) { return value; }
double number(const char*, int64_t value) { return static_cast<double>(value); }
double number(const char* what, const Tensor& t) {
  TORCH_CHECK(t.numel() == 1, "[quantized_decomposed] expected ", what, " of one element, got ", t.numel());
  return t.item().toDouble();
}
int64_t whole(const char*, int64_t value) { return value; }
int64_t whole(const char* what, const Tensor& t) { return static_cast<int64_t>(number(what, t)); }

template <class Scale, class Zero, class Limit>
Tensor q_tensor(const Tensor& input, Scale scale, Zero zero, Limit min, Limit max, at::ScalarType type) {
  return quantize_per_tensor(input, number("scale", scale), number("zero_point", zero),
                             {whole("quant_min", min), whole("quant_max", max), type});
}
template <class Scale, class Zero, class Limit>
Tensor d_tensor(const Tensor& input, Scale scale, Zero zero, Limit, Limit, at::ScalarType type, OptionalType out) {
  return dequantize_per_tensor(input, number("scale", scale), number("zero_point", zero), type,
                               out.value_or(at::kFloat));
}

// --- meta
template <class Scale, class Zero, class Limit>
Tensor q_tensor_meta(const Tensor& input, Scale, Zero, Limit min, Limit max, at::ScalarType type) {
  if constexpr (std::is_same_v<Limit, int64_t>) {
    check_quantize(input, {min, max, type});
  } else {
    check_quantize(input, {0, 0, type});  // the limits' values are not there
  }
  return at::empty(input.sizes(), input.options().dtype(type));
}
Tensor q_channel_meta(const Tensor& input, const Tensor&, const Tensor&, int64_t, int64_t min, int64_t max,
                      at::ScalarType type) {
  return q_tensor_meta<int, int, int64_t>(input, 0, 0, min, max, type);
}
template <class Scale, class Zero, class Limit, class Out>
Tensor d_tensor_meta(const Tensor& input, Scale, Zero, Limit, Limit, at::ScalarType type, Out out) {
  const at::ScalarType out_dtype = OptionalType(out).value_or(at::kFloat);
  check_dequantize(input, type, out_dtype);
  return at::empty(input.sizes(), input.options().dtype(out_dtype));
}
Tensor d_channel_meta(const Tensor& input, const Tensor&, const OptionalTensor&, int64_t, int64_t min, int64_t max,
                      at::ScalarType type, OptionalType out) {
  return d_tensor_meta<int, int, int64_t, OptionalType>(input, 0, 0, min, max, type, out);
}

/// Library: an Edge, or torch's own.
template <bool kMeta, class Library>
void register_all(Library& m) {
  using T = const Tensor&;
  const auto add = [&](const char* name, auto kernel, auto meta) {
    if constexpr (kMeta) m.impl(name, meta);
    if constexpr (!kMeta) m.impl(name, kernel);
  };
  const auto add_tensor = [&]<class Scale, class Zero, class Limit>(const std::string& tail) {
    add(("quantize_per_tensor" + tail).c_str(), &q_tensor<Scale, Zero, Limit>, &q_tensor_meta<Scale, Zero, Limit>);
    add(("dequantize_per_tensor" + tail).c_str(), &d_tensor<Scale, Zero, Limit>,
        &d_tensor_meta<Scale, Zero, Limit, OptionalType>);
  };
  add_tensor.template operator()<double, int64_t, int64_t>("");
  add_tensor.template operator()<T, T, int64_t>(".tensor");
  add_tensor.template operator()<T, T, T>(".tensor2");
  add("quantize_per_channel", &quantize_per_channel, &q_channel_meta);
  add("quantize_per_token", &quantize_per_token, &q_tensor_meta<T, T, int64_t>);
  add("dequantize_per_channel", &dequantize_per_channel, &d_channel_meta);
  add("dequantize_per_token", &dequantize_per_token, &d_tensor_meta<T, T, int64_t, at::ScalarType>);
}

/// Not where Python defines the schemas.
bool has_python() { return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr; }

FP8_LIBRARY_FRAGMENT(quantized_decomposed, m) {
  if (has_python()) return;
  // PyTorch's own texts (torch/ao/quantization/fx/_decomposed.py, 2.13).
  define(m, R"(
    quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) ->
        Tensor;
    quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType
        dtype) -> Tensor;
    quantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max,
        ScalarType dtype) -> Tensor;
    quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max,
        ScalarType dtype) -> Tensor;
    quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType
        dtype) -> Tensor;
    dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype,
        *, ScalarType? out_dtype=None) -> Tensor;
    dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max,
        ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor;
    dequantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max,
        ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor;
    dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max,
        ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor;
    dequantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType
        dtype, ScalarType output_dtype) -> Tensor;)");
}
FP8_LIBRARY_IMPL(quantized_decomposed, HPU, m) {
  Edge edge(m, "quantized_decomposed");
  register_all<false>(edge);
}
FP8_LIBRARY_IMPL(quantized_decomposed, Meta, m) {
  if (!has_python()) register_all<true>(m);
}

}  // namespace
}  // namespace fp8::runtime::ops
