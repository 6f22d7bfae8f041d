// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/cast/cast.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

/// Vendor's texts for float8 inputs.
void check_cast(const at::Tensor& input, bool is_amax, at::ScalarType dtype) {
  TORCH_CHECK(is_fp8(dtype), "[cast_to_fp8_v2] expected dtype Float8_e4m3fn or Float8_e5m2, got ", dtype);
  if (c10::isFloat8Type(input.scalar_type())) {
    TORCH_CHECK(!is_amax, "CastToFp8V2 must have no amax for float8.");
    TORCH_CHECK(input.scalar_type() == dtype,
                "CastToFp8V2 input and output must have the same dtype for float8, but are ", input.scalar_type(),
                " and ", dtype);
    return;
  }
  TORCH_CHECK(is_high_precision(input.scalar_type()),
              "[cast_to_fp8_v2] expected input of dtype Float, BFloat16, Half or ", dtype, ", got ",
              input.scalar_type());
}

at::Tensor amax_result(const at::Tensor& like, bool is_amax) {
  const auto options = like.options().dtype(at::kFloat);
  return is_amax ? at::empty({}, options) : at::empty({0}, options);
}

/// PT_HPU_STOCHASTIC_ROUNDING_MODE is about this cast alone.
bool flushes(at::ScalarType from, at::ScalarType to) {
  return from == at::kBFloat16 && to == at::kFloat8_e5m2 && stochastic_rounding_flushes();
}

/// The magnitude where a cast to `dtype` saturates on the device.
float max_of(at::ScalarType dtype, const char* op) { return kernels::fp8_max(format_of(dtype), device_dialect(op)); }

/// The vendor's cast with `scale`, rounded to the input's dtype already; the spec points into it.
CastSpec spec_of(const at::Tensor& input, const Scale& scale, const ScaleLayout& broadcast, bool stochastic,
                 at::ScalarType dtype, float* amax) {
  CastSpec spec{.format = format_of(dtype), .max = max_of(dtype, "cast_to_fp8"), .vendor = true, .amax = amax};
  if (scale.per_tensor()) spec.scale = scale.values[0];
  if (!scale.none() && !scale.per_tensor()) {
    spec.layout = broadcast;
    spec.scales = scale.values.data();
  }
  if (stochastic) spec.stochastic = draw_seed();
  spec.flush_subnormal = stochastic && flushes(input.scalar_type(), dtype);
  return spec;
}

void run_cast(const at::Tensor& input, const Scale& scale, const ScaleLayout& broadcast, bool stochastic,
              const at::Tensor& out, float* amax) {
  runtime::cast_into(input, spec_of(input, scale, broadcast, stochastic, out.scalar_type(), amax), out);
}

/// Any broadcast the kernel does not know: the product in the input's dtype first, which is what the rule says anyway.
at::Tensor scaled(const at::Tensor& input, const Scale& scale) {
  TORCH_CHECK(at::is_expandable_to(scale.shape, input.sizes()),
              "[cast] expected a scale that broadcasts to the input's sizes ", input.sizes(), ", got sizes ",
              at::IntArrayRef(scale.shape));
  const at::Tensor factor =
      at::from_blob(const_cast<float*>(scale.values.data()), scale.shape, at::kFloat).to(input.scalar_type());
  return at::mul(cpu_alias(input.detach()), factor);
}

void scale_and_cast(const at::Tensor& x, Scale scale, bool stochastic, const at::Tensor& out, float* amax) {
  round_to(scale, x.scalar_type());
  const auto broadcast = broadcast_of(scale, x.sizes());
  if (broadcast.has_value()) return run_cast(x, scale, *broadcast, stochastic, out, amax);
  run_cast(scaled(x, scale), Scale{}, ScaleLayout{}, stochastic, out, nullptr);
  if (amax != nullptr) *amax = amax_of(x);
}

float pow2_ceil(float v) {
  int exponent = 0;
  const float mantissa = std::frexp(v, &exponent);  // v = mantissa * 2^exponent, mantissa in [0.5, 1)
  if (!(v > 0) || !std::isfinite(v)) return v;
  return std::ldexp(1.0f, mantissa == 0.5f ? exponent - 1 : exponent);
}

std::vector<int64_t> reduced_sizes(const at::Tensor& input, int64_t max_mode, int64_t axis, bool keepdim) {
  if (max_mode == 0) return input.sizes().vec();
  if (max_mode == 1) return {1};
  auto sizes = input.sizes().vec();
  TORCH_CHECK(axis >= -input.dim() && axis < input.dim(), "[calculate_scale_for_cast] expected reduceAxis in [",
              -input.dim(), ", ", input.dim() - 1, "], got ", axis);
  if (axis < 0) axis += input.dim();
  if (keepdim) {
    sizes[axis] = 1;
  } else {
    sizes.erase(sizes.begin() + axis);
  }
  return sizes;
}

void check_modes(const at::Tensor& input, int64_t max_mode, int64_t scale_mode) {
  check_high_precision("calculate_scale_for_cast", "input of dtype", input.scalar_type());
  TORCH_CHECK(max_mode >= 0 && max_mode <= 2,
              "[calculate_scale_for_cast] expected maxMode 0 (none), 1 (per tensor) or 2 (per channel), got ",
              max_mode);
  TORCH_CHECK(scale_mode == 0 || scale_mode == 1,
              "[calculate_scale_for_cast] expected scaleMode 0 (none) or 1 (power of two), got ", scale_mode);
}

// --- shapes and dtypes alone, for meta tensors; the same checks

std::tuple<at::Tensor, at::Tensor> cast_to_fp8_v2_meta(const at::Tensor& input, bool is_amax, at::ScalarType dtype) {
  check_cast(input, is_amax, dtype);
  return {at::empty(input.sizes(), input.options().dtype(dtype)), amax_result(input, is_amax)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cast_to_fp8_hybrid_meta(const at::Tensor& input,
                                                                       const std::optional<at::Tensor>&,
                                                                       const std::optional<at::Tensor>&, bool,
                                                                       bool is_amax) {
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16,
              "[cast_to_fp8_hybrid] expected input of dtype Float or BFloat16, got ", input.scalar_type());
  return {at::empty(input.sizes(), input.options().dtype(at::kFloat8_e5m2)),
          at::empty(input.sizes(), input.options().dtype(at::kFloat8_e4m3fn)), amax_result(input, is_amax)};
}

void check_decode(const at::Tensor& input, at::ScalarType out_dtype) {
  check_fp8("cast_from_fp8", "input", input.scalar_type());
  check_high_precision("cast_from_fp8", "out_dtype", out_dtype);
}

at::Tensor cast_from_fp8_meta(const at::Tensor& input, at::ScalarType out_dtype) {
  check_decode(input, out_dtype);
  return at::empty(input.sizes(), input.options().dtype(out_dtype));
}

at::Tensor calculate_scale_for_cast_meta(const at::Tensor& input, int64_t max_mode, int64_t scale_mode,
                                         int64_t reduce_axis, bool reduce_keepdim, double, double) {
  check_modes(input, max_mode, scale_mode);
  return at::empty(reduced_sizes(input, max_mode, reduce_axis, reduce_keepdim), input.options());
}

}  // namespace

std::uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

std::tuple<at::Tensor, at::Tensor> cast_to_fp8_v2(const at::Tensor& input, Scale scale, bool stochastic_rounding,
                                                  bool is_amax, at::ScalarType dtype) {
  LeafScope leaf("hpu::cast_to_fp8_v2", input);
  (void)device_dialect("cast_to_fp8_v2");  // refuses the first generation, whatever the input
  auto [out, amax] = cast_to_fp8_v2_meta(input, is_amax, dtype);
  float* amax_data = is_amax ? amax.mutable_data_ptr<float>() : nullptr;
  if (is_amax) *amax_data = 0;
  if (!is_fp8(input.scalar_type())) {
    scale_and_cast(input, std::move(scale), stochastic_rounding, out, amax_data);
  } else if (scale.none() || (scale.per_tensor() && scale.values[0] == 1.0f)) {
    out.view(at::kByte).copy_(input.view(at::kByte));
  } else {
    scale_and_cast(cast_from_fp8(input, Scale{}, at::kFloat), std::move(scale), stochastic_rounding, out, nullptr);
  }
  leaf.gives(out, amax);
  if (!is_fp8(input.scalar_type())) note_cast(leaf, input, {{out, max_of(dtype, "cast_to_fp8_v2")}});
  return {out, amax};
}

std::tuple<at::Tensor&, at::Tensor&> cast_to_fp8(const at::Tensor& input, const std::optional<at::Tensor>& scale,
                                                 bool stochastic_rounding, at::Tensor& out, at::Tensor& amax) {
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16,
              "[cast_to_fp8] expected input of dtype Float or BFloat16, got ", input.scalar_type());
  LeafScope leaf("hpu::cast_to_fp8", input);
  check_fp8("cast_to_fp8", "out", out.scalar_type());
  TORCH_CHECK(out.sizes() == input.sizes() && out.is_contiguous(), "[cast_to_fp8] expected a contiguous out of sizes ",
              input.sizes(), ", got sizes ", out.sizes());
  TORCH_CHECK(amax.numel() == 0 || amax.scalar_type() == at::kFloat, "[cast_to_fp8] expected amax of dtype Float, got ",
              amax.scalar_type());
  scale_and_cast(input, scale_of(scale, std::nullopt), stochastic_rounding, out,
                 amax.numel() != 0 ? amax.mutable_data_ptr<float>() : nullptr);
  leaf.gives(out, amax);
  note_cast(leaf, input, {{out, max_of(out.scalar_type(), "cast_to_fp8")}});
  return {out, amax};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cast_to_fp8_hybrid(const at::Tensor& input,
                                                                  const std::optional<at::Tensor>& scale_152,
                                                                  const std::optional<at::Tensor>& scale_143,
                                                                  bool stochastic_rounding, bool is_amax) {
  LeafScope leaf("hpu::cast_to_fp8_hybrid", input);
  auto [e5m2, e4m3, amax] = cast_to_fp8_hybrid_meta(input, scale_152, scale_143, stochastic_rounding, is_amax);
  float* amax_data = is_amax ? amax.mutable_data_ptr<float>() : nullptr;
  Scale wide = scale_of(scale_152, std::nullopt), narrow = scale_of(scale_143, std::nullopt);
  round_to(wide, input.scalar_type());
  round_to(narrow, input.scalar_type());
  const auto wide_broadcast = broadcast_of(wide, input.sizes()), narrow_broadcast = broadcast_of(narrow, input.sizes());
  if (wide_broadcast.has_value() && narrow_broadcast.has_value()) {
    runtime::cast_into(input, spec_of(input, wide, *wide_broadcast, stochastic_rounding, at::kFloat8_e5m2, amax_data),
                       e5m2, spec_of(input, narrow, *narrow_broadcast, false, at::kFloat8_e4m3fn, nullptr), e4m3);
  } else {
    scale_and_cast(input, std::move(wide), stochastic_rounding, e5m2, amax_data);
    scale_and_cast(input, std::move(narrow), false, e4m3, nullptr);
  }
  leaf.gives(e5m2, e4m3, amax);
  note_cast(leaf, input,
            {{e5m2, max_of(at::kFloat8_e5m2, "cast_to_fp8_hybrid")},
             {e4m3, max_of(at::kFloat8_e4m3fn, "cast_to_fp8_hybrid")}});
  return {e5m2, e4m3, amax};
}

at::Tensor cast_from_fp8(const at::Tensor& input, Scale scale, at::ScalarType out_dtype) {
  LeafScope leaf("hpu::cast_from_fp8", input);
  Fp8Tensor x{input};
  x.dialect = device_dialect("cast_from_fp8");
  check_decode(input, out_dtype);
  round_to(scale, out_dtype);
  const auto broadcast = broadcast_of(scale, input.sizes());
  if (scale.per_tensor()) {
    x.scale_inv = scale.values[0];
  } else if (!scale.none() && broadcast.has_value()) {
    x.layout = *broadcast;
    x.grid = at::from_blob(scale.values.data(), static_cast<std::int64_t>(scale.values.size()), at::kFloat);
  }
  const at::Tensor y = decode(x, out_dtype);
  if (!broadcast.has_value()) y.copy_(scaled(y, scale));  // codes are exact in any dtype: this is the one rounding
  leaf.gives(y);
  return y;
}

at::Tensor calculate_scale_for_cast(const at::Tensor& input, int64_t max_mode, int64_t scale_mode, int64_t reduce_axis,
                                    bool reduce_keepdim, double fullscale, double backoff) {
  LeafScope leaf("hpu::calculate_scale_for_cast", input);
  at::Tensor out =
      calculate_scale_for_cast_meta(input, max_mode, scale_mode, reduce_axis, reduce_keepdim, fullscale, backoff);
  at::Tensor v = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  const at::Tensor host = cpu_alias(input.detach());
  const auto type = float_type_of(input.scalar_type());
  float* values = v.mutable_data_ptr<float>();
  if (max_mode == 0) {
    v.copy_(input);
  } else if (max_mode == 1) {
    values[0] = kernels::amax(host.contiguous().const_data_ptr(), type, host.numel());
  } else {
    const at::Tensor rows = host.movedim(reduce_axis, -1).contiguous();
    kernels::amax_rows(rows.const_data_ptr(), type, v.numel(), rows.size(-1), rows.size(-1), values);
  }
  const float factor = max_mode == 0 ? 1.0f : static_cast<float>(1.0 / (fullscale * backoff));
  for (std::int64_t i = 0; i < v.numel(); ++i) {
    values[i] *= factor;
    if (scale_mode == 1) values[i] = pow2_ceil(values[i]);
  }
  out.copy_(v);
  leaf.gives(out);
  return out;
}

namespace {

// hpu::sum_fp8: the sum of fp8 values over dimensions, in f32 (as at::sum of the same values), rounded once to
// out_dtype; to fp8 it saturates as the device does. self: fp8, f32, bf16 or f16. dim: none or empty for all.
// out_dtype: one of those too, default self's.
at::Tensor sum_fp8_meta(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> out_dtype) {
  const auto known = [](at::ScalarType type) { return is_fp8(type) || is_high_precision(type); };
  TORCH_CHECK(known(self.scalar_type()),
              "[sum_fp8] expected self of dtype Float8_e4m3fn, Float8_e5m2, Float, BFloat16 or Half, got ",
              self.scalar_type());
  const auto type = out_dtype.value_or(self.scalar_type());
  TORCH_CHECK(known(type), "[sum_fp8] expected out_dtype Float8_e4m3fn, Float8_e5m2, Float, BFloat16 or Half, got ",
              type);
  const auto reduced = at::dim_list_to_bitset(dim, static_cast<std::size_t>(self.dim()));  // throws on bad dimensions
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < self.dim(); ++i) {
    const bool gone = reduced[static_cast<std::size_t>(i)];
    if (!gone || keepdim) sizes.push_back(gone ? 1 : self.size(i));
  }
  return at::empty(sizes, self.options().dtype(type));
}

at::Tensor sum_fp8(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> out_dtype) {
  LeafScope leaf("hpu::sum_fp8", self);
  const at::Tensor out = sum_fp8_meta(self, dim, keepdim, out_dtype);
  const at::Tensor x = self.detach();
  const at::Tensor values = is_fp8(x.scalar_type()) ? cast_from_fp8(x, Scale{}, at::kFloat) : x.to(at::kFloat);
  const at::Tensor sum = at::sum(values, dim, keepdim);
  at::Tensor y = is_fp8(out.scalar_type()) ? std::get<0>(cast_to_fp8_v2(sum, Scale{}, false, false, out.scalar_type()))
                                           : sum.to(out.scalar_type());
  leaf.gives(y);
  return y;
}

// hpu:: operators of casts and products: schemas, and the vendor's argument forms, translated. Names, argument order
// and defaults are the vendor's (bridge 1.19), so that programs written for the device run unchanged; the semantics
// stand in the headers of ops/. `ScalarType dtype=None` is the vendor's spelling: callers must pass it.
//
// An operator's schema, kernel and meta function are registered here, its work is in <op>.cpp.

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

template <typename ScaleArgument, bool kMeta>
Tensor from_fp8(const Tensor& input, ScaleArgument scale, at::ScalarType out_dtype, OptionalIntArrayRef shape) {
  if constexpr (kMeta) return cast_from_fp8_meta(input, out_dtype);
  return cast_from_fp8(input, scale_of(scale, shape), out_dtype);
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
  m.impl("cast_to_fp8_hybrid", kMeta ? &cast_to_fp8_hybrid_meta : &cast_to_fp8_hybrid);
  m.impl("cast_from_fp8", &from_fp8<T, kMeta>);
  m.impl("cast_from_fp8.scalar", &from_fp8<double, kMeta>);
  m.impl("cast_from_fp8.scalar_list", &from_fp8<Floats, kMeta>);
  m.impl("calculate_scale_for_cast", kMeta ? &calculate_scale_for_cast_meta : &calculate_scale_for_cast);
  m.impl("sum_fp8", kMeta ? &sum_fp8_meta : &sum_fp8);
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
        float fullscale=1.0, float backoff=1.0) -> Tensor;
    sum_fp8(Tensor self, int[1]? dim=None, bool keepdim=False, ScalarType? out_dtype=None) -> Tensor;)");

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
