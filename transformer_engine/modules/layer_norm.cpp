// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/layer_norm.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <ostream>

#include "fp8/transformer_engine/products/fp8_weight.h"

namespace fp8::te {
namespace {

void check(const char* module, const NormOptions& options) {
  TORCH_CHECK(options.normalized_shape >= 1, "[", module, "] normalized_shape: found ", options.normalized_shape,
              ", allowed: an integer >= 1");
  check_eps(module, options.eps);
  check_params_dtype(module, options.params_dtype);
}

void check_features(const char* module, const at::Tensor& x, std::int64_t features) {
  TORCH_CHECK(x.defined(), "[", module, "] input: found none, allowed: [..., ", features, "]");
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == features, "[", module, "] input: found sizes ", x.sizes(),
              ", allowed: [..., ", features, "]");
}

void print(std::ostream& stream, const char* name, const NormOptions& options) {
  stream << "fp8::te::" << name << "(" << options.normalized_shape << ", eps=" << options.eps
         << (options.zero_centered_gamma ? ", zero_centered_gamma=true" : "") << ")";
}

using Elementwise = at::Tensor (*)(const at::Tensor&);

struct Activation {
  const char* name;
  Elementwise f;
  bool gated;
};

at::Tensor gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }
at::Tensor quick_gelu(const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }
at::Tensor squared_relu(const at::Tensor& x) { return at::relu(x).square(); }
at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor sigmoid(const at::Tensor& x) { return at::sigmoid(x); }

constexpr Activation kActivations[] = {
    {"gelu", gelu, false},          {"relu", relu, false},  {"silu", silu, false},         {"qgelu", quick_gelu, false},
    {"srelu", squared_relu, false}, {"geglu", gelu, true},  {"reglu", relu, true},         {"swiglu", silu, true},
    {"qgeglu", quick_gelu, true},   {"glu", sigmoid, true}, {"sreglu", squared_relu, true}};

const Activation& activation_of(const std::string& name) {
  for (const Activation& a : kActivations)
    if (name == a.name) return a;
  const auto quoted = [](const Activation& a) { return "\"" + std::string(a.name) + "\""; };
  TORCH_CHECK(false, "[te::LayerNormMLP] activation: found \"", name,
              "\", allowed: ", io::joined(kActivations | std::views::transform(quoted)));
}

}  // namespace

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  const Activation& a = activation_of(name);
  if (!a.gated) return a.f(x);
  const auto halves = x.chunk(2, -1);
  return a.f(halves[0]) * halves[1];
}

Normalization normalization_of(const char* module, const std::string& name) {
  if (name == "LayerNorm") return Normalization::LayerNorm;
  if (name == "RMSNorm") return Normalization::RMSNorm;
  TORCH_CHECK(false, "[", module, "] normalization: found \"", name, "\", allowed: \"LayerNorm\", \"RMSNorm\"");
}

void check_eps(const char* module, double eps) {
  TORCH_CHECK(std::isfinite(eps) && eps >= 0, "[", module, "] eps: found ", eps, ", allowed: finite numbers >= 0");
}

at::Tensor initial_gamma(const NormOptions& options) {
  const auto to = at::TensorOptions().dtype(options.params_dtype).device(options.device);
  return options.zero_centered_gamma ? at::zeros({options.normalized_shape}, to)
                                     : at::ones({options.normalized_shape}, to);
}

at::Tensor normalize(Normalization kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& beta,
                     double eps, bool zero_centered_gamma) {
  // 1 + weight in f32: beside a 1, bf16 would lose the low bits of weights that are centered to keep them.
  const bool wide = zero_centered_gamma && weight.scalar_type() != at::kFloat;
  const at::Tensor gamma = zero_centered_gamma ? weight.to(at::kFloat) + 1 : weight;
  if (kind == Normalization::RMSNorm)
    return wide ? at::rms_norm(x.to(at::kFloat), weight.sizes(), gamma, eps).to(x.scalar_type())
                : at::rms_norm(x, weight.sizes(), gamma, eps);
  return wide ? at::layer_norm(x.to(at::kFloat), weight.sizes(), gamma, beta.to(at::kFloat), eps).to(x.scalar_type())
              : at::layer_norm(x, weight.sizes(), gamma, beta, eps);
}

LayerNormImpl::LayerNormImpl(NormOptions options) : options_(options) {
  check("te::LayerNorm", options_);
  reset();
}

void LayerNormImpl::reset() {
  weight = register_parameter("weight", initial_gamma(options_));
  bias = register_parameter("bias", at::zeros_like(weight));
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  check_features("te::LayerNorm", x, options_.normalized_shape);
  return normalize(Normalization::LayerNorm, x, weight, bias, options_.eps, options_.zero_centered_gamma);
}
void LayerNormImpl::pretty_print(std::ostream& stream) const { print(stream, "LayerNorm", options_); }

RMSNormImpl::RMSNormImpl(NormOptions options) : options_(options) {
  check("te::RMSNorm", options_);
  reset();
}

void RMSNormImpl::reset() { weight = register_parameter("weight", initial_gamma(options_)); }

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  check_features("te::RMSNorm", x, options_.normalized_shape);
  return normalize(Normalization::RMSNorm, x, weight, {}, options_.eps, options_.zero_centered_gamma);
}
void RMSNormImpl::pretty_print(std::ostream& stream) const { print(stream, "RMSNorm", options_); }

AnyNorm::AnyNorm(Normalization kind, const NormOptions& options) {
  if (kind == Normalization::LayerNorm) {
    layer = LayerNorm(options);
  } else {
    rms = RMSNorm(options);
  }
}

std::shared_ptr<torch::nn::Module> AnyNorm::module() const {
  if (layer) return layer.ptr();
  if (rms) return rms.ptr();
  return nullptr;
}

at::Tensor AnyNorm::operator()(const at::Tensor& x) { return layer ? layer->forward(x) : rms->forward(x); }

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
  const NormOptions norm = norm_options(o, o.in_features, o.eps);
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

LayerNormMLPImpl::LayerNormMLPImpl(LayerNormMLPOptions options)
    : options_(std::move(options)), kind_(normalization_of("te::LayerNormMLP", options_.normalization)) {
  check_size("te::LayerNormMLP", "hidden_size", options_.hidden_size);
  check_size("te::LayerNormMLP", "ffn_hidden_size", options_.ffn_hidden_size);
  (void)activation_of(options_.activation);
  check_eps("te::LayerNormMLP", options_.eps);
  check_options("te::LayerNormMLP", options_.params_dtype, options_.minimize_memory);
  check_parallel("te::LayerNormMLP", options_.parallel);
  refuse_wgrad_options("te::LayerNormMLP", options_.fuse_wgrad_accumulation, options_.delay_wgrad_compute);
  reset();
}

void LayerNormMLPImpl::reset() {
  const auto& o = options_;
  fc1_state_ = std::make_shared<Fp8State>(o.name + ".fc1", 2, 1);
  fc2_state_ = std::make_shared<Fp8State>(o.name + ".fc2", 2, 1);
  const NormOptions norm = norm_options(o, o.hidden_size, o.eps);
  layer_norm_weight = register_parameter("layer_norm_weight", initial_gamma(norm));
  if (kind_ == Normalization::LayerNorm)
    layer_norm_bias = register_parameter("layer_norm_bias", at::zeros_like(layer_norm_weight));
  const auto layer = [&](const std::string& fc, std::int64_t out, std::int64_t in, const InitMethod& init,
                         at::Tensor& weight, at::Tensor& bias) {
    const at::Tensor values = initial_weight({out, in}, init, o.params_dtype, o.device);
    weight = register_parameter(fc + "_weight", make_weight_parameter(values, o.name + "." + fc));
    bias = register_parameter(fc + "_bias", o.bias ? at::zeros({out}, values.options()) : at::Tensor(),
                              /*requires_grad=*/o.bias);
  };
  layer("fc1", (activation_of(o.activation).gated ? 2 : 1) * o.ffn_hidden_size, o.hidden_size, o.init_method,
        fc1_weight, fc1_bias);
  layer("fc2", o.hidden_size, o.ffn_hidden_size, o.output_layer_init_method, fc2_weight, fc2_bias);
}

std::pair<at::Tensor, at::Tensor> LayerNormMLPImpl::run(const at::Tensor& x,
                                                        std::optional<bool> is_first_microbatch) const {
  const at::Tensor normal =
      normalize(kind_, x, layer_norm_weight, layer_norm_bias, options_.eps, options_.zero_centered_gamma);
  const Fp8LinearOptions o = product_options(options_.minimize_memory, is_first_microbatch, is_training());
  const at::Tensor inner = activate(options_.activation, linear_or_fp8(normal, fc1_weight, fc1_bias, fc1_state_, o));
  return {linear_or_fp8(inner, fc2_weight, options_.return_bias ? at::Tensor() : fc2_bias, fc2_state_, o), normal};
}

ModuleOutputs LayerNormMLPImpl::forward_all(const at::Tensor& x, std::optional<bool> is_first_microbatch) {
  check_input("te::LayerNormMLP", options_.name, x, options_.hidden_size);
  ModuleOutputs out;
  if (options_.return_bias) out.bias = fc2_bias;
  if (!options_.checkpoint) {
    auto [y, normal] = run(x, is_first_microbatch);
    out.y = y;
    if (options_.return_layernorm_output) out.layernorm_output = normal;
    return out;
  }
  const auto self = std::static_pointer_cast<LayerNormMLPImpl>(shared_from_this());  // alive until backward has run
  const CheckpointedFunction run_again = [self, is_first_microbatch](const std::vector<at::Tensor>& inputs) {
    auto [y, normal] = self->run(inputs[0], is_first_microbatch);
    std::vector<at::Tensor> outputs{y};
    if (self->options_.return_layernorm_output) outputs.push_back(normal);
    return outputs;
  };
  // The only random numbers that a forward could draw are those of dropout, which is not here.
  const auto outputs = te::checkpoint(run_again, {x}, {.preserve_rng_state = false});
  out.y = outputs[0];
  if (outputs.size() > 1) out.layernorm_output = outputs[1];
  return out;
}

void LayerNormMLPImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::LayerNormMLP(hidden_size=" << options_.hidden_size
         << ", ffn_hidden_size=" << options_.ffn_hidden_size << ", activation=" << options_.activation
         << ", normalization=" << options_.normalization << ", bias=" << (options_.bias ? "true" : "false") << ")";
}

}  // namespace fp8::te
