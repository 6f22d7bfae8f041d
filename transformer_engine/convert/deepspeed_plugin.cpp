// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert/deepspeed_plugin.h"

#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>

#include <utility>

namespace fp8::te {

quant::ConversionReport HPUDeepSpeedPrecisionPlugin::convert_modules(torch::nn::Module& model,
                                                                     const ConvertOptions& options) {
  if (engine_ != nullptr || options.plan_only) return convert_now(model, options);
  if (options.recipe.has_value()) set_recipe(*options.recipe);
  deferred_ = options;
  quant::ConversionReport report;
  report.warnings.push_back("deferred: modules are converted when the engine is attached");
  return report;
}

quant::ConversionReport HPUDeepSpeedPrecisionPlugin::attach(ZeroEngine& engine) {
  TORCH_CHECK(engine_ == nullptr,
              "[HPUDeepSpeedPrecisionPlugin] attach: found an engine that is attached already, allowed: one; call "
              "detach() first");
  quant::ConversionReport report;
  if (deferred_.has_value()) report = convert_now(engine.module(), *deferred_);
  deferred_.reset();
  engine_ = &engine;
  return report;
}

ZeroEngine& HPUDeepSpeedPrecisionPlugin::engine(const char* call) const {
  TORCH_CHECK(engine_ != nullptr, "[HPUDeepSpeedPrecisionPlugin] ", call,
              ": found no engine, allowed: after attach(engine); training with this plugin needs a ZeRO engine");
  return *engine_;
}

void HPUDeepSpeedPrecisionPlugin::backward(const at::Tensor& loss) {
  ZeroEngine& e = engine("backward");
  TORCH_CHECK(loss.defined(),
              "[HPUDeepSpeedPrecisionPlugin] backward: found an undefined loss, allowed: a tensor; a training step "
              "can't be skipped under DeepSpeed");
  e.backward(loss);
}

void HPUDeepSpeedPrecisionPlugin::warn_of_own_backward() {
  if (std::exchange(warned_, true)) return;
  TORCH_WARN(
      "[HPUDeepSpeedPrecisionPlugin] backward: You have overridden the `backward` hook but it will be ignored since "
      "DeepSpeed handles the backward logic internally.");
}

void HPUDeepSpeedPrecisionPlugin::optimizer_step(torch::optim::Optimizer& optimizer,
                                                 const std::function<at::Tensor()>& closure, bool manual_optimization) {
  TORCH_CHECK(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
              "[HPUDeepSpeedPrecisionPlugin] optimizer_step: DeepSpeed and the LBFGS optimizer are not compatible. "
              "Allowed: optimizers that evaluate the "
              "closure once");
  ZeroEngine& e = engine("optimizer_step");
  const at::Tensor loss = closure();
  TORCH_CHECK(manual_optimization || loss.defined(),
              "[HPUDeepSpeedPrecisionPlugin] optimizer_step: found an undefined loss, allowed: a tensor. Skipping "
              "backward by returning `None` from your "
              "`training_step` is not supported by `DeepSpeed`");
  e.step();
}

void HPUDeepSpeedPrecisionPlugin::clip_gradients(torch::optim::Optimizer&, double) const {}

}  // namespace fp8::te
