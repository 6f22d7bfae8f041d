// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/cast/fp8_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

template <class Signature>
c10::TypedOperatorHandle<Signature> handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

using Gemm = Tensor(const Tensor&, bool, const Tensor&, bool, const OptionalTensor&, at::ScalarType,
                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, OptionalIntArrayRef);

const c10::TypedOperatorHandle<Gemm>& gemm_op() {
  static const auto op = handle<Gemm>("hpu::fp8_gemm_v2");
  return op;
}

using Cast = std::tuple<Tensor, Tensor>(const Tensor&, const OptionalTensor&, bool, bool, at::ScalarType,
                                        OptionalIntArrayRef);

const c10::TypedOperatorHandle<Cast>& cast_op() {
  static const auto op = handle<Cast>("hpu::cast_to_fp8_v2");
  return op;
}

}  // namespace

Tensor call_cast_to_fp8(const Tensor& x, const Tensor& scale, at::ScalarType dtype, OptionalIntArrayRef scale_shape) {
  return std::get<0>(cast_op().call(x, scale, false, false, dtype, scale_shape));
}

std::tuple<Tensor, Tensor> call_cast_to_fp8_v2(const Tensor& x, const OptionalTensor& scale, bool stochastic_rounding,
                                               bool is_amax, at::ScalarType dtype) {
  return cast_op().call(x, scale, stochastic_rounding, is_amax, dtype, OptionalIntArrayRef());
}

std::tuple<Tensor, Tensor, Tensor> call_cast_to_fp8_hybrid(const Tensor& x, const OptionalTensor& scale_152,
                                                           const OptionalTensor& scale_143, bool stochastic_rounding,
                                                           bool is_amax) {
  static const auto op = handle<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, const OptionalTensor&, const OptionalTensor&, bool, bool)>("hpu::cast_to_fp8_hybrid");
  return op.call(x, scale_152, scale_143, stochastic_rounding, is_amax);
}

Tensor call_cast_from_fp8(const Tensor& x, const Tensor& scale_inv, at::ScalarType out_dtype,
                          OptionalIntArrayRef scale_shape) {
  static const auto op =
      handle<Tensor(const Tensor&, const OptionalTensor&, at::ScalarType, OptionalIntArrayRef)>("hpu::cast_from_fp8");
  return op.call(x, scale_inv, out_dtype, scale_shape);
}

Tensor call_fp8_gemm(const Tensor& x, const Tensor& weight, at::ScalarType out_dtype, const Tensor& x_scale_inv,
                     const Tensor& w_scale_inv, const OptionalTensor& bias) {
  const CodesWithScale given;
  const int64_t columns[] = {1, w_scale_inv.numel()};
  return gemm_op().call(x, false, weight, true, std::nullopt, out_dtype, x_scale_inv, w_scale_inv, bias, false,
                        w_scale_inv.numel() > 1 ? OptionalIntArrayRef(columns) : OptionalIntArrayRef());
}

Tensor call_fp8_matmul(const Tensor& a, const Tensor& b, at::ScalarType out_dtype, const OptionalTensor& a_scale_inv,
                       const OptionalTensor& b_scale_inv) {
  return gemm_op().call(a, false, b, false, std::nullopt, out_dtype, a_scale_inv, b_scale_inv, std::nullopt, false,
                        OptionalIntArrayRef());
}

Tensor call_fp8_gemm_v2(const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, const OptionalTensor& d,
                        at::ScalarType out_dtype, const OptionalTensor& a_scale_inv, const OptionalTensor& b_scale_inv,
                        const OptionalTensor& bias, bool accumulate) {
  return gemm_op().call(a, trans_a, b, trans_b, d, out_dtype, a_scale_inv, b_scale_inv, bias, accumulate,
                        OptionalIntArrayRef());
}

Tensor call_conv2d_fp8(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups, at::ScalarType out_dtype,
                       const Tensor& x_scale_inv, const Tensor& w_scale_inv) {
  const CodesWithScale given;
  static const auto op = handle<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, at::IntArrayRef,
                                       at::IntArrayRef, at::IntArrayRef, int64_t, std::optional<at::ScalarType>,
                                       const OptionalTensor&, const OptionalTensor&)>("hpu::conv2d_fp8");
  return op.call(x, weight, bias, stride, padding, dilation, groups, out_dtype, x_scale_inv, w_scale_inv);
}

Tensor call_weight_only_linear(const Tensor& x, const Tensor& weight, const Tensor& w_scale_inv,
                               const OptionalTensor& bias) {
  const CodesWithScale given;
  static const auto op =
      handle<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&)>("fp8::weight_only_linear");
  return op.call(x, weight, w_scale_inv, bias);
}

Tensor call_block_linear(const Tensor& x, const OptionalTensor& x_scale_inv, const Tensor& weight,
                         const Tensor& weight_scale_inv, int64_t block_rows, int64_t block_cols, int64_t first_row,
                         const OptionalTensor& bias, at::ScalarType out_dtype) {
  const CodesWithScale given;
  static const auto op = handle<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, int64_t,
                                       int64_t, int64_t, const OptionalTensor&, at::ScalarType)>("fp8::block_linear");
  return op.call(x, x_scale_inv, weight, weight_scale_inv, block_rows, block_cols, first_row, bias, out_dtype);
}

}  // namespace fp8::runtime::ops
