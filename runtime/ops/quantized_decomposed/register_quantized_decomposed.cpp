// SPDX-License-Identifier: Apache-2.0
// quantized_decomposed:: on hpu. The schemas belong to PyTorch's Python package (torch.ao), which defines them when it
// is imported and would refuse to if somebody had done so before. So with a Python interpreter in the process only
// kernels are added here; without one nobody else can define them, and this library does, meta functions included.
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/quantized_decomposed/quantized_decomposed.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;

double number(const char* what, const Tensor& t) {
  TORCH_CHECK(t.numel() == 1, "[quantized_decomposed] expected ", what, " of one element, got ", t.numel());
  return t.item().toDouble();
}
int64_t whole(const char* what, const Tensor& t) { return static_cast<int64_t>(number(what, t)); }

at::ScalarType type_or_float(OptionalType type) { return type.value_or(at::kFloat); }

// --- quantize
Tensor q_tensor(const Tensor& input, double scale, int64_t zero, int64_t min, int64_t max, at::ScalarType type) {
  return quantize_per_tensor(input, scale, static_cast<double>(zero), {min, max, type});
}
Tensor q_tensor1(const Tensor& input, const Tensor& scale, const Tensor& zero, int64_t min, int64_t max,
                 at::ScalarType type) {
  return quantize_per_tensor(input, number("scale", scale), number("zero_point", zero), {min, max, type});
}
Tensor q_tensor2(const Tensor& input, const Tensor& scale, const Tensor& zero, const Tensor& min, const Tensor& max,
                 at::ScalarType type) {
  return q_tensor1(input, scale, zero, whole("quant_min", min), whole("quant_max", max), type);
}
Tensor q_channel(const Tensor& input, const Tensor& scales, const Tensor& zeros, int64_t axis, int64_t min, int64_t max,
                 at::ScalarType type) {
  return quantize_per_channel(input, scales, zeros, axis, {min, max, type});
}
Tensor q_token(const Tensor& input, const Tensor& scales, const Tensor& zeros, int64_t min, int64_t max,
               at::ScalarType type) {
  return quantize_per_token(input, scales, zeros, {min, max, type});
}

// --- dequantize
Tensor d_tensor(const Tensor& input, double scale, int64_t zero, int64_t min, int64_t max, at::ScalarType type,
                OptionalType out) {
  return dequantize_per_tensor(input, scale, static_cast<double>(zero), {min, max, type}, type_or_float(out));
}
Tensor d_tensor1(const Tensor& input, const Tensor& scale, const Tensor& zero, int64_t min, int64_t max,
                 at::ScalarType type, OptionalType out) {
  return dequantize_per_tensor(input, number("scale", scale), number("zero_point", zero), {min, max, type},
                               type_or_float(out));
}
Tensor d_tensor2(const Tensor& input, const Tensor& scale, const Tensor& zero, const Tensor&, const Tensor&,
                 at::ScalarType type, OptionalType out) {
  return d_tensor1(input, scale, zero, 0, 0, type, out);
}
Tensor d_channel(const Tensor& input, const Tensor& scales, const OptionalTensor& zeros, int64_t axis, int64_t min,
                 int64_t max, at::ScalarType type, OptionalType out) {
  return dequantize_per_channel(input, scales, zeros, axis, {min, max, type}, type_or_float(out));
}
Tensor d_token(const Tensor& input, const Tensor& scales, const Tensor& zeros, int64_t min, int64_t max,
               at::ScalarType type, at::ScalarType out) {
  return dequantize_per_token(input, scales, zeros, {min, max, type}, out);
}

// --- meta
template <typename Scale, typename Zero, typename Limit>
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
Tensor d_meta(const Tensor& input, at::ScalarType type, at::ScalarType out) {
  check_dequantize(input, {0, 0, type}, out);
  return at::empty(input.sizes(), input.options().dtype(out));
}
template <typename Scale, typename Zero, typename Limit>
Tensor d_tensor_meta(const Tensor& input, Scale, Zero, Limit, Limit, at::ScalarType type, OptionalType out) {
  return d_meta(input, type, type_or_float(out));
}
Tensor d_channel_meta(const Tensor& input, const Tensor&, const OptionalTensor&, int64_t, int64_t, int64_t,
                      at::ScalarType type, OptionalType out) {
  return d_meta(input, type, type_or_float(out));
}
Tensor d_token_meta(const Tensor& input, const Tensor&, const Tensor&, int64_t, int64_t, at::ScalarType type,
                    at::ScalarType out) {
  return d_meta(input, type, out);
}

FP8_LIBRARY_IMPL(quantized_decomposed, HPU, m) {
  Edge edge(m, "quantized_decomposed");
  edge.impl("quantize_per_tensor", &q_tensor);
  edge.impl("quantize_per_tensor.tensor", &q_tensor1);
  edge.impl("quantize_per_tensor.tensor2", &q_tensor2);
  edge.impl("quantize_per_channel", &q_channel);
  edge.impl("quantize_per_token", &q_token);
  edge.impl("dequantize_per_tensor", &d_tensor);
  edge.impl("dequantize_per_tensor.tensor", &d_tensor1);
  edge.impl("dequantize_per_tensor.tensor2", &d_tensor2);
  edge.impl("dequantize_per_channel", &d_channel);
  edge.impl("dequantize_per_token", &d_token);
}

/// PyTorch's own texts (torch/ao/quantization/fx/_decomposed.py, 2.13).
void define(torch::Library& m) {
  m.def(
      "quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) "
      "-> Tensor");
  m.def(
      "quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
      "ScalarType dtype) -> Tensor");
  m.def(
      "quantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max, "
      "ScalarType dtype) -> Tensor");
  m.def(
      "quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, "
      "ScalarType dtype) -> Tensor");
  m.def(
      "quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType "
      "dtype) -> Tensor");
  m.def(
      "dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType "
      "dtype, "
      "*, ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
      "ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "dequantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor "
      "quant_max, "
      "ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int "
      "quant_max, "
      "ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "dequantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType "
      "dtype, ScalarType output_dtype) -> Tensor");
}

void register_meta(torch::Library& m) {
  using T = const Tensor&;
  m.impl("quantize_per_tensor", &q_tensor_meta<double, int64_t, int64_t>);
  m.impl("quantize_per_tensor.tensor", &q_tensor_meta<T, T, int64_t>);
  m.impl("quantize_per_tensor.tensor2", &q_tensor_meta<T, T, T>);
  m.impl("quantize_per_channel", &q_channel_meta);
  m.impl("quantize_per_token", &q_tensor_meta<T, T, int64_t>);
  m.impl("dequantize_per_tensor", &d_tensor_meta<double, int64_t, int64_t>);
  m.impl("dequantize_per_tensor.tensor", &d_tensor_meta<T, T, int64_t>);
  m.impl("dequantize_per_tensor.tensor2", &d_tensor_meta<T, T, T>);
  m.impl("dequantize_per_channel", &d_channel_meta);
  m.impl("dequantize_per_token", &d_token_meta);
}

/// Not where Python defines the schemas.
bool has_python() { return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr; }

FP8_LIBRARY_FRAGMENT(quantized_decomposed, m) {
  if (!has_python()) define(m);
  autocast::keep_out_of_own_ops();
}
FP8_LIBRARY_IMPL(quantized_decomposed, Meta, m) {
  if (!has_python()) register_meta(m);
}

}  // namespace
}  // namespace fp8::runtime::ops
