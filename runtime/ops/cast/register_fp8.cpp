// SPDX-License-Identifier: Apache-2.0
// hpu:: fp8 operators: the vendor's argument forms, translated. One table for HPU, one for Meta.
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using Floats = at::ArrayRef<double>;

// --- cast_to_fp8_v2: the scale as tensor, float or list
template <typename ScaleArgument>
TwoTensors to_fp8(const Tensor& input, ScaleArgument scale, bool stochastic, bool is_amax, at::ScalarType dtype,
                  OptionalIntArrayRef shape) {
  return cast_to_fp8_v2(input, scale_of(scale, shape), stochastic, is_amax, dtype);
}
template <typename ScaleArgument>
TwoTensors to_fp8_meta(const Tensor& input, ScaleArgument, bool, bool is_amax, at::ScalarType dtype,
                       OptionalIntArrayRef) {
  return cast_to_fp8_v2_meta(input, is_amax, dtype);
}

std::tuple<Tensor&, Tensor&> to_fp8_v1_meta(const Tensor&, const OptionalTensor&, bool, Tensor& out, Tensor& amax) {
  return {out, amax};
}

std::tuple<Tensor, Tensor, Tensor> to_fp8_hybrid_meta(const Tensor& input, const OptionalTensor&, const OptionalTensor&,
                                                      bool, bool is_amax) {
  return cast_to_fp8_hybrid_meta(input, is_amax);
}

template <typename ScaleArgument>
Tensor from_fp8(const Tensor& input, ScaleArgument scale, at::ScalarType out_dtype, OptionalIntArrayRef shape) {
  return cast_from_fp8(input, scale_of(scale, shape), out_dtype);
}
template <typename ScaleArgument>
Tensor from_fp8_meta(const Tensor& input, ScaleArgument, at::ScalarType out_dtype, OptionalIntArrayRef) {
  return cast_from_fp8_meta(input, out_dtype);
}

Tensor calculate_scale_meta(const Tensor& input, int64_t max_mode, int64_t scale_mode, int64_t axis, bool keepdim,
                            double, double) {
  return calculate_scale_for_cast_meta(input, max_mode, scale_mode, axis, keepdim);
}

// --- fp8_gemm_v2
template <typename ScaleArgument, bool kMeta>
Tensor gemm_v2(const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, const OptionalTensor& d,
               at::ScalarType out_dtype, ScaleArgument a_scale_inv, ScaleArgument b_scale_inv,
               const OptionalTensor& bias, bool accumulate, OptionalIntArrayRef b_scale_shape) {
  GemmOptions options{trans_a, trans_b, out_dtype, {}, {}, accumulate};
  if constexpr (kMeta) return fp8_gemm_meta(a, b, d, bias, options);
  options.a_scale_inv = scale_of(a_scale_inv, std::nullopt);
  options.b_scale_inv = scale_of(b_scale_inv, b_scale_shape);
  return fp8_gemm(a, b, d, bias, options);
}

// --- conv2d_fp8
template <typename ScaleArgument, bool kMeta>
Tensor conv2d(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride,
              at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
              std::optional<at::ScalarType> out_dtype, ScaleArgument scale_input, ScaleArgument scale_weight) {
  ConvOptions options{stride.vec(), padding.vec(), dilation.vec(), groups, out_dtype.value_or(at::kBFloat16), {}, {}};
  if constexpr (kMeta) return conv2d_fp8_meta(input, weight, bias, std::move(options));
  options.scale_input = scale_of(scale_input, std::nullopt);
  options.scale_weight = scale_of(scale_weight, std::nullopt);
  return conv2d_fp8(input, weight, bias, std::move(options));
}

}  // namespace

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  edge.impl("cast_to_fp8", &cast_to_fp8);
  edge.impl("cast_to_fp8_v2", &to_fp8<const OptionalTensor&>);
  edge.impl("cast_to_fp8_v2.scalar", &to_fp8<double>);
  edge.impl("cast_to_fp8_v2.scalar_list", &to_fp8<Floats>);
  edge.impl("cast_to_fp8_hybrid", &cast_to_fp8_hybrid);
  edge.impl("cast_from_fp8", &from_fp8<const OptionalTensor&>);
  edge.impl("cast_from_fp8.scalar", &from_fp8<double>);
  edge.impl("cast_from_fp8.scalar_list", &from_fp8<Floats>);
  edge.impl("calculate_scale_for_cast", &calculate_scale_for_cast);
  edge.impl("fp8_gemm_v2", &gemm_v2<const OptionalTensor&, false>);
  edge.impl("fp8_gemm_v2.scalar", &gemm_v2<double, false>);
  edge.impl("fp8_gemm_v2.scalar_list", &gemm_v2<Floats, false>);
  edge.impl("conv2d_fp8", &conv2d<const OptionalTensor&, false>);
  edge.impl("conv2d_fp8.scalar", &conv2d<double, false>);
}

FP8_LIBRARY_IMPL(hpu, Meta, m) {
  m.impl("cast_to_fp8", &to_fp8_v1_meta);
  m.impl("cast_to_fp8_v2", &to_fp8_meta<const OptionalTensor&>);
  m.impl("cast_to_fp8_v2.scalar", &to_fp8_meta<double>);
  m.impl("cast_to_fp8_v2.scalar_list", &to_fp8_meta<Floats>);
  m.impl("cast_to_fp8_hybrid", &to_fp8_hybrid_meta);
  m.impl("cast_from_fp8", &from_fp8_meta<const OptionalTensor&>);
  m.impl("cast_from_fp8.scalar", &from_fp8_meta<double>);
  m.impl("cast_from_fp8.scalar_list", &from_fp8_meta<Floats>);
  m.impl("calculate_scale_for_cast", &calculate_scale_meta);
  m.impl("fp8_gemm_v2", &gemm_v2<const OptionalTensor&, true>);
  m.impl("fp8_gemm_v2.scalar", &gemm_v2<double, true>);
  m.impl("fp8_gemm_v2.scalar_list", &gemm_v2<Floats, true>);
  m.impl("conv2d_fp8", &conv2d<const OptionalTensor&, true>);
  m.impl("conv2d_fp8.scalar", &conv2d<double, true>);
}

}  // namespace fp8::runtime::ops
