// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/fp8_handler.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>
#include <numeric>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/ops/fp8_ops.h"
#include "fp8/runtime/ops/native/arguments.h"

namespace fp8::quant {
namespace {

namespace ops = runtime::ops;

runtime::DeviceKind kind_of(recipes::Dialect dialect) {
  return dialect == recipes::Dialect::gaudi2 ? runtime::DeviceKind::gaudi2 : runtime::DeviceKind::gaudi3;
}

at::ScalarType dtype_of(recipes::FloatType type) {
  return type == recipes::FloatType::F32 ? at::kFloat : type == recipes::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}

at::ScalarType compute_dtype(const at::Tensor& x) {
  return at::autocast::is_autocast_enabled(at::kHPU) ? at::autocast::get_autocast_dtype(at::kHPU) : x.scalar_type();
}

at::Tensor on_hpu(float value, const at::Tensor& like) { return at::full({1}, value, like.options().dtype(at::kFloat)); }

std::optional<at::Tensor> bias_in(const std::optional<at::Tensor>& bias, at::ScalarType compute) {
  return bias.has_value() && bias->defined() && !ops::is_high_precision(bias->scalar_type()) ? std::optional<at::Tensor>(bias->to(compute)) : bias;
}

bool wants_gradient(const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  return at::GradMode::is_enabled() && (x.requires_grad() || (bias.has_value() && bias->requires_grad()));
}

/// codes [rows, cols] -> values. The product is taken in f32 and rounded once, to `dtype`: hpu::cast_from_fp8 would round the scale first.
at::Tensor decode(const at::Tensor& codes, at::IntArrayRef sizes, std::int64_t rows, at::ScalarType dtype, recipes::Format format, const float* scale_inv,
                  std::int64_t scale_stride) {
  const at::Tensor dense = codes.is_contiguous() ? codes : codes.view(at::kByte).contiguous();
  at::Tensor out = at::empty(sizes, codes.options().dtype(dtype));
  kernels::DecodeArgs args;
  args.codes = static_cast<const std::uint8_t*>(dense.const_data_ptr());
  args.rows = rows;
  args.cols = rows == 0 ? 0 : codes.numel() / rows;
  args.format = format;
  args.y = out.mutable_data_ptr();
  args.type = ops::float_type_of(dtype);
  args.scale_inv = scale_inv;
  args.scale_row_stride = scale_stride;
  kernels::decode_from_fp8(args);
  return out;
}

}  // namespace

Fp8Handler::Fp8Handler(Scheme scheme, at::Tensor weight_scale_inv, at::ScalarType original_dtype)
    : scheme_(std::move(scheme)), weight_scale_inv_(std::move(weight_scale_inv)), original_dtype_(original_dtype) {
  input_scale_ = on_hpu(scheme_.input_scale, weight_scale_inv_);
  input_scale_inv_ = on_hpu(scheme_.input_scale_inv, weight_scale_inv_);
}

at::Tensor Fp8Handler::scale_inv_of(const runtime::WeightView& view) const {
  return weight_scale_inv_.numel() == 1 ? weight_scale_inv_ : weight_scale_inv_.narrow(0, view.first_row, view.rows);
}

Fp8Handler::CastInput Fp8Handler::cast_input(const at::Tensor& x, bool per_row) const {
  const at::ScalarType dtype = ops::dtype_of(scheme_.format);
  const at::Tensor source = x.to(scheme_.convention == Convention::own ? at::kFloat : dtype_of(scheme_.hp)).contiguous();
  if (scheme_.activations == ActivationScaling::static_tensor) {
    return {ops::call_cast_to_fp8(source, input_scale_, dtype), input_scale_inv_};
  }
  // Dynamic: scale_inv = f32(amax / fp8_max), 1 for rows of zeros, as recipes/scale.h says. A row with NaN or Inf comes out NaN, not
  // saturated.
  const std::int64_t cols = per_row ? source.size(-1) : source.numel();
  const auto sizes = source.sizes();
  const std::int64_t rows = per_row ? std::accumulate(sizes.begin(), sizes.end() - 1, std::int64_t{1}, std::multiplies<>()) : 1;
  at::Tensor scale = at::empty({rows}, source.options().dtype(at::kFloat)), scale_inv = at::empty_like(scale);
  float* inv = scale_inv.mutable_data_ptr<float>();
  kernels::amax_rows(source.const_data_ptr(), ops::float_type_of(source.scalar_type()), rows, cols, cols, inv);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float amax = inv[r];
    inv[r] = std::isfinite(amax) ? recipes::scale_inv_from_amax(amax, scheme_.fp8_max(), "activation") : std::numeric_limits<float>::quiet_NaN();
    scale.mutable_data_ptr<float>()[r] = 1.0f / inv[r];
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(source.dim()), 1);
  if (per_row) {
    shape = source.sizes().vec();
    if (!shape.empty()) shape.back() = 1;
  }
  return {ops::call_cast_to_fp8(source, scale, dtype, shape), scale_inv.view({rows, 1})};
}

at::Tensor Fp8Handler::product(const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& x, const std::optional<at::Tensor>& bias) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme_.dialect));
  const at::ScalarType compute = compute_dtype(x);
  const auto b = bias_in(bias, compute);
  if (scheme_.activations == ActivationScaling::none) return ops::call_weight_only_linear(x.to(compute), weight, scale_inv_of(view), b);
  const CastInput in = cast_input(x, /*per_row=*/true);
  return ops::call_fp8_gemm(in.codes, weight, compute, in.scale_inv, scale_inv_of(view), b);
}

at::Tensor Fp8Handler::linear(const runtime::LinearCall& call) {
  if (wants_gradient(call.x, call.bias)) return product_with_gradient(shared_from_this(), call.view, call.weight, call.x, call.bias);
  return product(call.view, call.weight, call.x, call.bias);
}

at::Tensor Fp8Handler::values(const runtime::WeightView& view, const at::Tensor& upright, at::ScalarType dtype) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const float* scale = weight_scale_inv_.const_data_ptr<float>();
  if (weight_scale_inv_.numel() == 1) return decode(upright, upright.sizes(), 1, dtype, scheme_.format, scale, 0);
  const std::int64_t rows = view.whole ? weight_scale_inv_.numel() : view.rows;
  return decode(upright, upright.sizes(), rows, dtype, scheme_.format, scale + (view.whole ? 0 : view.first_row), 1);
}

at::Tensor Fp8Handler::dequantize(const runtime::WeightTag&, const runtime::WeightView& view, const at::Tensor& weight) {
  const at::ScalarType dtype = at::autocast::is_autocast_enabled(at::kHPU) ? at::autocast::get_autocast_dtype(at::kHPU) : original_dtype_;
  return view.transposed ? values(view, weight.transpose(-2, -1), dtype).transpose(-2, -1) : values(view, weight, dtype);
}

at::Tensor Fp8Handler::embedding(const runtime::WeightTag&, const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& indices) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor flat = indices.reshape({-1});
  const at::Tensor codes = weight.view(at::kByte).index_select(0, flat).view(weight.scalar_type());
  const at::Tensor scale = scale_inv_of(view);
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  if (scale.numel() == 1) return decode(codes, sizes, 1, original_dtype_, scheme_.format, scale.const_data_ptr<float>(), 0);
  const at::Tensor rows = scale.index_select(0, flat);
  return decode(codes, sizes, flat.numel(), original_dtype_, scheme_.format, rows.const_data_ptr<float>(), 1);
}

at::Tensor Fp8Handler::convolution(const runtime::ConvolutionCall& call) {
  const std::int64_t spatial = call.weight.dim() - 2;
  if (spatial != 2 || scheme_.activations == ActivationScaling::none) {
    // No fp8 kernel for it: in high precision with the quantized weight's values, and with ATen's own gradients.
    const at::ScalarType compute = compute_dtype(call.x);
    const auto bias = call.bias.has_value() && call.bias->defined() ? std::optional<at::Tensor>(call.bias->to(compute)) : std::nullopt;
    const std::vector<std::int64_t> output_padding(static_cast<std::size_t>(spatial), 0);
    return at::convolution(call.x.to(compute), all_values(call.weight, compute), bias, call.stride, call.padding, call.dilation, false, output_padding, call.groups);
  }
  const ConvolutionGeometry geometry{call.stride.vec(), call.padding.vec(), call.dilation.vec(), call.groups};
  if (wants_gradient(call.x, call.bias)) return convolution_with_gradient(shared_from_this(), geometry, call.weight, call.x, call.bias);
  return convolution_product(geometry, call.weight, call.x, call.bias);
}

at::Tensor Fp8Handler::convolution_product(const ConvolutionGeometry& g, const at::Tensor& weight, const at::Tensor& x, const std::optional<at::Tensor>& bias) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme_.dialect));
  const at::ScalarType compute = compute_dtype(x);
  const CastInput in = cast_input(x, /*per_row=*/false);
  return ops::call_conv2d_fp8(in.codes, weight, bias_in(bias, compute), g.stride, g.padding, g.dilation, g.groups, compute, in.scale_inv, weight_scale_inv_);
}

at::Tensor Fp8Handler::all_values(const at::Tensor& weight, at::ScalarType dtype) const {
  const std::int64_t rows = weight.size(0);
  return values({0, rows, 0, weight.numel() / std::max<std::int64_t>(rows, 1), 0, false, true}, weight, dtype);
}

}  // namespace fp8::quant
