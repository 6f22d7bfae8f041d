// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rsqrt.h>

#include <utility>

#include "fp8/tools/models/base/decoder_math.h"
#include "fp8/tools/models/base/placeholders.h"

namespace fp8::models {

NormImpl::NormImpl(std::string type, std::vector<std::int64_t> shape, const NormSpec& spec)
    : torch::nn::Module(std::move(type)), spec_(spec) {
  if (spec.weight) weight = register_parameter("weight", placeholder(shape));
  if (spec.bias) bias = register_parameter("bias", placeholder(shape));
}

at::Tensor NormImpl::forward(const at::Tensor& x, const runtime::NextCast& next) {
  return spec_.kind == NormSpec::Kind::rms ? rms(x, next) : layer(x, next);
}

at::Tensor NormImpl::rms(const at::Tensor& x, const runtime::NextCast& next) const {
  if (!weight.defined()) {
    const auto wide = x.to(at::kFloat);
    return (wide * at::rsqrt(wide.pow(2).mean({-1}, /*keepdim=*/true) + spec_.eps)).to(x.scalar_type());
  }
  const RmsNormForm form{.wide = spec_.wide || spec_.plus_one, .offset = spec_.plus_one ? 1.0 : 0.0};
  return is_training() || weight.dim() > 1 ? rms_norm_by_operations(x, weight, spec_.eps, form)
                                           : rms_norm(x, weight, spec_.eps, form, next);
}

const at::Tensor& NormImpl::weight_plus_one() {
  const bool known =
      summed_.defined() && summed_.is_alias_of(weight) && !weight.is_inference() && !weight.requires_grad();
  if (!known || version_ != weight._version()) {
    sum_ = weight + 1;
    summed_ = weight.detach();
    version_ = weight.is_inference() ? 0 : weight._version();
  }
  return sum_;
}

at::Tensor NormImpl::layer(const at::Tensor& x, const runtime::NextCast& next) {
  const auto width = x.sizes().slice(static_cast<std::size_t>(x.dim() - 1));
  const auto& by = weight.defined() && spec_.plus_one ? weight_plus_one() : weight;
  if (!by.defined() || by.dim() == 1)
    return is_training() ? at::layer_norm(x, width, by, bias, spec_.eps) : layer_norm(x, by, bias, spec_.eps, next);
  const auto y = at::layer_norm(x.to(at::kFloat), width, {}, {}, spec_.eps) * by.to(at::kFloat);
  return (bias.defined() ? y + bias : y).to(x.scalar_type());
}

}  // namespace fp8::models
