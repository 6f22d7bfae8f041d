// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/decoder_math.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>

#include <initializer_list>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/decoder_math.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::models {
namespace {

using runtime::CastBeside;
using runtime::cpu_alias;
using runtime::NextCast;

/// Whether our kernels may read these (but those undefined) as arrays of one type in host memory, and nobody wants to
/// see the operations.
bool in_one_pass(std::initializer_list<const at::Tensor*> tensors) {
  const at::Tensor& first = **tensors.begin();
  const auto type = first.scalar_type();
  const auto device = first.device();
  if ((type != at::kBFloat16 && type != at::kFloat) || (!device.is_cpu() && device.type() != at::kHPU) ||
      at::autocast::is_autocast_enabled(device.type()))
    return false;
  for (const at::Tensor* t : tensors) {
    if (!t->defined()) continue;
    if (t->scalar_type() != type || t->device() != device || t->layout() != at::kStrided || t->is_neg() ||
        (t->requires_grad() && at::GradMode::is_enabled()))
      return false;
    const auto* block = runtime::block_of(*t);
    if (!device.is_cpu() && (block == nullptr || block->tag)) return false;
  }
  return true;
}

at::Tensor rms_norm_in_one_pass(const at::Tensor& given, const at::Tensor& weight, double eps, RmsNormForm form,
                                const NextCast& next) {
  runtime::OpScope leaf("fp8::rms_norm", given, weight);
  const at::Tensor x = given.contiguous(), y = at::empty(x.sizes(), x.options());
  const at::Tensor from = cpu_alias(x), by = cpu_alias(weight);
  kernels::RmsNormArgs args;
  args.type = runtime::float_type_of(x.scalar_type());
  args.n = x.size(-1), args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  args.x = from.const_data_ptr(), args.x_stride = args.n;
  args.weight = by.const_data_ptr();
  args.eps = static_cast<float>(eps);
  args.wide = form.wide, args.offset = static_cast<float>(form.offset);
  args.y = cpu_alias(y).mutable_data_ptr();
  const CastBeside cast(y, next);
  args.cast = cast.rows();
  kernels::rms_norm(args);
  cast.keep();
  leaf.gives(y);
  return y;
}

at::Tensor layer_norm_in_one_pass(const at::Tensor& given, const at::Tensor& weight, const at::Tensor& bias, double eps,
                                  const NextCast& next) {
  runtime::OpScope leaf("fp8::layer_norm", given, weight, bias);
  const at::Tensor x = given.contiguous(), y = at::empty(x.sizes(), x.options());
  const at::Tensor from = cpu_alias(x), by = weight.defined() ? cpu_alias(weight) : weight,
                   plus = bias.defined() ? cpu_alias(bias) : bias;
  kernels::LayerNormArgs args;
  args.type = runtime::float_type_of(x.scalar_type());
  args.n = x.size(-1), args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  args.x = from.const_data_ptr(), args.x_stride = args.n;
  args.weight = by.defined() ? by.const_data_ptr() : nullptr;
  args.bias = plus.defined() ? plus.const_data_ptr() : nullptr;
  args.eps = static_cast<float>(eps);
  args.y = cpu_alias(y).mutable_data_ptr();
  const CastBeside cast(y, next);
  args.cast = cast.rows();
  kernels::layer_norm(args);
  cast.keep();
  leaf.gives(y);
  return y;
}

/// Rows of contiguous elements, equally far apart: halves of a projection are.
bool has_even_rows(const at::Tensor& t) {
  if (t.dim() < 2 || t.stride(-1) != 1 || t.stride(-2) < t.size(-1)) return false;
  for (std::int64_t d = 0; d + 2 < t.dim(); ++d)
    if (t.stride(d) != t.stride(d + 1) * t.size(d + 1)) return false;
  return true;
}

at::Tensor silu_mul_in_one_pass(const at::Tensor& gate, const at::Tensor& up, const NextCast& next) {
  runtime::OpScope leaf("fp8::silu_mul", gate, up);
  const at::Tensor y = at::empty(gate.sizes(), gate.options());
  const at::Tensor left = cpu_alias(gate), right = cpu_alias(up);
  kernels::SiluMulArgs args;
  args.type = runtime::float_type_of(gate.scalar_type());
  args.n = gate.size(-1), args.rows = args.n == 0 ? 0 : gate.numel() / args.n;
  args.gate = left.const_data_ptr(), args.gate_stride = gate.stride(-2);
  args.up = right.const_data_ptr(), args.up_stride = up.stride(-2);
  args.y = cpu_alias(y).mutable_data_ptr();
  const CastBeside cast(y, next);
  args.cast = cast.rows();
  kernels::silu_mul(args);
  cast.keep();
  leaf.gives(y);
  return y;
}

at::Tensor rotate_in_one_pass(const at::Tensor& x, const RotaryAngles& angles) {
  runtime::OpScope leaf("fp8::rotary", x, angles.cos);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  const at::Tensor from = cpu_alias(x), cos = cpu_alias(angles.cos), sin = cpu_alias(angles.sin);
  kernels::RotaryArgs args;
  args.type = runtime::float_type_of(x.scalar_type());
  args.batch = x.size(0), args.heads = x.size(1), args.length = x.size(2), args.width = x.size(3);
  args.x = from.const_data_ptr();
  args.x_batch = x.stride(0), args.x_head = x.stride(1), args.x_length = x.stride(2);
  args.cos = cos.const_data_ptr(), args.sin = sin.const_data_ptr();
  args.angle_batch = angles.cos.size(0) > 1 ? args.length * args.width : 0;
  args.y = cpu_alias(y).mutable_data_ptr();
  kernels::rotary(args);
  leaf.gives(y);
  return y;
}

/// Angles of the positions of x, for all heads, of each sequence or of all.
bool fits(const at::Tensor& x, const RotaryAngles& angles) {
  const std::int64_t batch = angles.cos.dim() == 4 ? angles.cos.size(0) : 0;
  const std::int64_t sizes[] = {batch, 1, x.size(2), x.size(3)};
  return (batch == 1 || batch == x.size(0)) && angles.cos.sizes() == at::IntArrayRef(sizes) &&
         angles.sin.sizes() == angles.cos.sizes() && angles.cos.is_contiguous() && angles.sin.is_contiguous();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form, const NextCast& next) {
  if (in_one_pass({&x, &weight}) && x.dim() > 0 && weight.is_contiguous() && weight.numel() == x.size(-1))
    return rms_norm_in_one_pass(x, weight, eps, form, next);
  return rms_norm_by_operations(x, weight, eps, form);
}

at::Tensor rms_norm_by_operations(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form) {
  const auto wide = x.to(at::kFloat);
  const auto variance = wide.pow(2).mean({-1}, /*keepdim=*/true);
  const auto y = wide * at::rsqrt(variance + eps);
  if (!form.wide) return weight * y.to(x.scalar_type());
  return (y * (weight.to(at::kFloat) + form.offset)).to(x.scalar_type());
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      const NextCast& next) {
  const auto fits_row = [&](const at::Tensor& t) {
    return !t.defined() || (t.dim() == 1 && t.is_contiguous() && t.numel() == x.size(-1));
  };
  if (in_one_pass({&x, &weight, &bias}) && x.dim() > 0 && fits_row(weight) && fits_row(bias))
    return layer_norm_in_one_pass(x, weight, bias, eps, next);
  return at::layer_norm(x, x.sizes().slice(static_cast<std::size_t>(x.dim() - 1)), weight, bias, eps);
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const NextCast& next) {
  if (gate.sizes() == up.sizes() && in_one_pass({&gate, &up}) && has_even_rows(gate) && has_even_rows(up))
    return silu_mul_in_one_pass(gate, up, next);
  return at::silu(gate) * up;
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  if (x.dim() == 4 && x.size(-1) % 2 == 0 && x.stride(-1) == 1 && in_one_pass({&x, &angles.cos, &angles.sin}) &&
      fits(x, angles))
    return rotate_in_one_pass(x, angles);
  const auto half = x.size(-1) / 2;
  const auto turned = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return x * angles.cos + turned * angles.sin;
}

}  // namespace fp8::models
