// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/layer_norm_linear.h"

#include <ATen/ops/zeros_like.h>

#include <ostream>

namespace fp8::te {

LayerNormLinearImpl::LayerNormLinearImpl(LayerNormLinearOptions options)
    : options_(std::move(options)), kind_(normalization_of("te::LayerNormLinear", options_.normalization)) {
  TORCH_CHECK(options_.in_features >= 1 && options_.out_features >= 1,
              "[te::LayerNormLinear] in_features, out_features: found ", options_.in_features, ", ",
              options_.out_features, ", allowed: integers >= 1");
  check_eps("te::LayerNormLinear", options_.eps);
  check_options("te::LayerNormLinear", options_.params_dtype, options_.minimize_memory);
  check_parallel("te::LayerNormLinear", options_.parallel);
  check_split("te::LayerNormLinear", options_.parameters_split, options_.out_features);
  refuse_wgrad_options("te::LayerNormLinear", options_.fuse_wgrad_accumulation, options_.delay_wgrad_compute);
  reset();
}

void LayerNormLinearImpl::reset() {
  const auto& o = options_;
  state_ = std::make_shared<Fp8State>(o.name, 2, 1);
  const NormOptions norm{.normalized_shape = o.in_features,
                         .eps = o.eps,
                         .zero_centered_gamma = o.zero_centered_gamma,
                         .params_dtype = o.params_dtype,
                         .device = o.device};
  layer_norm_weight = register_parameter("layer_norm_weight", initial_gamma(norm));
  if (kind_ == Normalization::LayerNorm)
    layer_norm_bias = register_parameter("layer_norm_bias", at::zeros_like(layer_norm_weight));
  const at::Tensor values = initial_weight({o.out_features, o.in_features}, o.init_method, o.params_dtype, o.device);
  parameters_of_product_.add(*this, "te::LayerNormLinear", o.name, o.parameters_split, values, o.bias);
  weight = parameters_of_product_.one_weight();
  bias = parameters_of_product_.one_bias();
}

ModuleOutputs LayerNormLinearImpl::forward_all(const at::Tensor& x, std::optional<bool> is_first_microbatch) {
  check_input("te::LayerNormLinear", options_.name, x, options_.in_features);
  const at::Tensor normal =
      normalize(kind_, x, layer_norm_weight, layer_norm_bias, options_.eps, options_.zero_centered_gamma);
  const Fp8LinearOptions o = product_options(options_.minimize_memory, is_first_microbatch, is_training());
  ModuleOutputs out;
  const at::Tensor b = parameters_of_product_.whole_bias(bias);
  out.y = linear_or_fp8(normal, parameters_of_product_.whole_weight(weight), options_.return_bias ? at::Tensor() : b,
                        state_, o);
  if (options_.return_bias) out.bias = b;
  if (options_.return_layernorm_output) out.layernorm_output = normal;
  return out;
}

void LayerNormLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::LayerNormLinear(in_features=" << options_.in_features
         << ", out_features=" << options_.out_features << ", normalization=" << options_.normalization
         << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

}  // namespace fp8::te
