// SPDX-License-Identifier: Apache-2.0
// hpu:: operators of casts and products: schemas, and the vendor's argument forms, translated. Names, argument order
// and defaults are the vendor's (bridge 1.19), so that programs written for the device run unchanged; the semantics
// stand in the headers of ops/. `ScalarType dtype=None` is the vendor's spelling: callers must pass it.
//
// An operator's schema, kernel and meta function are registered here, its work is in <op>.cpp.
#include <torch/library.h>

#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using Floats = at::ArrayRef<double>;

// --- cast_to_fp8_v2: the scale as tensor, float or list
template <typename ScaleArgument, bool kMeta>
TwoTensors to_fp8(const Tensor& input, ScaleArgument scale, bool stochastic, bool is_amax, at::ScalarType dtype,
                  OptionalIntArrayRef shape) {
  if constexpr (kMeta) return cast_to_fp8_v2_meta(input, is_amax, dtype);
  return cast_to_fp8_v2(input, scale_of(scale, shape), stochastic, is_amax, dtype);
}

std::tuple<Tensor&, Tensor&> to_fp8_v1_meta(const Tensor&, const OptionalTensor&, bool, Tensor& out, Tensor& amax) {
  return {out, amax};
}

std::tuple<Tensor, Tensor, Tensor> to_fp8_hybrid_meta(const Tensor& input, const OptionalTensor&, const OptionalTensor&,
                                                      bool, bool is_amax) {
  return cast_to_fp8_hybrid_meta(input, is_amax);
}

template <typename ScaleArgument, bool kMeta>
Tensor from_fp8(const Tensor& input, ScaleArgument scale, at::ScalarType out_dtype, OptionalIntArrayRef shape) {
  if constexpr (kMeta) return cast_from_fp8_meta(input, out_dtype);
  return cast_from_fp8(input, scale_of(scale, shape), out_dtype);
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

/// Library: an Edge, or torch's own.
template <bool kMeta, class Library>
void register_all(Library& m) {
  using T = const OptionalTensor&;
  m.impl("cast_to_fp8", kMeta ? &to_fp8_v1_meta : &cast_to_fp8);
  m.impl("cast_to_fp8_v2", &to_fp8<T, kMeta>);
  m.impl("cast_to_fp8_v2.scalar", &to_fp8<double, kMeta>);
  m.impl("cast_to_fp8_v2.scalar_list", &to_fp8<Floats, kMeta>);
  m.impl("cast_to_fp8_hybrid", kMeta ? &to_fp8_hybrid_meta : &cast_to_fp8_hybrid);
  m.impl("cast_from_fp8", &from_fp8<T, kMeta>);
  m.impl("cast_from_fp8.scalar", &from_fp8<double, kMeta>);
  m.impl("cast_from_fp8.scalar_list", &from_fp8<Floats, kMeta>);
  m.impl("calculate_scale_for_cast", kMeta ? &calculate_scale_meta : &calculate_scale_for_cast);
  m.impl("fp8_gemm_v2", &gemm_v2<T, kMeta>);
  m.impl("fp8_gemm_v2.scalar", &gemm_v2<double, kMeta>);
  m.impl("fp8_gemm_v2.scalar_list", &gemm_v2<Floats, kMeta>);
  m.impl("conv2d_fp8", &conv2d<T, kMeta>);
  m.impl("conv2d_fp8.scalar", &conv2d<double, kMeta>);
}

}  // namespace

FP8_LIBRARY(hpu, m) {
  // --- casts
  define(m, R"(
    cast_to_fp8(Tensor input, Tensor? scale, bool stochastic_rounding, Tensor(a!) out, Tensor(b!) amax) ->
        (Tensor(a!), Tensor(b!));
    cast_to_fp8_v2(Tensor input, Tensor? scale=None, bool stochastic_rounding=False, bool is_amax=False, ScalarType
        dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor);
    cast_to_fp8_v2.scalar(Tensor input, float scale, bool stochastic_rounding=False, bool is_amax=False, ScalarType
        dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor);
    cast_to_fp8_v2.scalar_list(Tensor input, float[] scale, bool stochastic_rounding=False, bool is_amax=False,
        ScalarType dtype=None, int[]? scale_shape=None) -> (Tensor, Tensor);
    cast_to_fp8_hybrid(Tensor input, Tensor? scale_152=None, Tensor? scale_143=None, bool stochastic_rounding=False,
        bool is_amax=False) -> (Tensor, Tensor, Tensor);
    cast_from_fp8(Tensor input, Tensor? scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor;
    cast_from_fp8.scalar(Tensor input, float scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor;
    cast_from_fp8.scalar_list(Tensor input, float[] scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor;
    calculate_scale_for_cast(Tensor input, int maxMode, int scaleMode, int reduceAxis=0, bool reduceKeepdim=False,
        float fullscale=1.0, float backoff=1.0) -> Tensor;)");

  // --- products
  define(m, R"(
    fp8_gemm_v2(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, Tensor?
        A_scale_inv=None, Tensor? B_scale_inv=None, Tensor? bias=None, bool accumulate=False, int[]?
        B_scale_shape=None) -> Tensor;
    fp8_gemm_v2.scalar(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, float
        A_scale_inv, float B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) ->
        Tensor;
    fp8_gemm_v2.scalar_list(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, float[]
        A_scale_inv, float[] B_scale_inv, Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) ->
        Tensor;
    conv2d_fp8(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2]
        dilation=1, int groups=1, ScalarType? out_dtype=None, Tensor? scale_input=None, Tensor? scale_weight=None) ->
        Tensor;
    conv2d_fp8.scalar(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0,
        SymInt[2] dilation=1, int groups=1, ScalarType? out_dtype=None, float scale_input=1.0, float scale_weight=1.0)
        -> Tensor;)");
}

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  register_all<false>(edge);
}
FP8_LIBRARY_IMPL(hpu, Meta, m) { register_all<true>(m); }

}  // namespace fp8::runtime::ops
