// SPDX-License-Identifier: Apache-2.0
// The precision plugin for training whose optimizer, gradients and clipping belong to a ZeRO engine. Engines re-arrange
// a model's parameters when they start, so conversion waits for them.
//
//   te::HPUDeepSpeedPrecisionPlugin plugin("fp8");
//   plugin.convert_modules(*model, {.replace_layers = true});     remembers
//   engine.initialize(*model);   plugin.attach(engine);           converts engine.module()
//   plugin.optimizer_step(optimizer, [&] {
//     auto region = plugin.forward_context(); auto loss = step(batch); ...; return loss;
//   });
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "fp8/transformer_engine/convert/precision_plugin.h"

namespace torch::optim {
class Optimizer;
}

namespace fp8::te {

/// What the plugin needs of an engine.
class ZeroEngine {
 public:
  virtual ~ZeroEngine() = default;
  /// The model that trains; valid once the engine is initialised.
  virtual torch::nn::Module& module() = 0;
  /// Scales the loss if the engine does, runs backward, reduces gradients.
  virtual void backward(const at::Tensor& loss) = 0;
  /// Clips, updates the parameters and clears the gradients, or only counts a microbatch.
  virtual void step() = 0;
};

/// As HPUPrecisionPlugin, with these differences. All errors are c10::Error.
class HPUDeepSpeedPrecisionPlugin : public HPUPrecisionPlugin {
 public:
  explicit HPUDeepSpeedPrecisionPlugin(const std::string& precision = "32-true", const std::string& device = "hpu")
      : HPUPrecisionPlugin(precision, device) {}

  /// Before attach(): remembers the options (the last call's count) and validates the recipe; nothing is converted, and
  /// the report says so. With plan_only the report is that of `model` as it is now. After attach(): converts `model` at
  /// once. Any precision is taken.
  quant::ConversionReport convert_modules(torch::nn::Module& model, const ConvertOptions& options = {}) override;

  /// `engine` is initialised: its module is converted as convert_modules() was told (nothing without a call of it). The
  /// engine must outlive the plugin, or detach(). Throws if one is attached already, or what the conversion throws;
  /// nothing is attached then.
  quant::ConversionReport attach(ZeroEngine& engine);
  void detach() { engine_ = nullptr; }
  bool attached() const { return engine_ != nullptr; }

  /// engine.backward(loss). Throws for an undefined loss and without an engine.
  void backward(const at::Tensor& loss);
  /// The same for a model that may have a backward(loss) of its own: a warning, once, says that it is not called.
  template <class Model>
  void backward(const at::Tensor& loss, Model& model) {
    if constexpr (requires { model.backward(loss); }) warn_of_own_backward();
    backward(loss);
  }

  /// Runs `closure` (forward and backward(), its result is the loss), then engine.step(), which updates the parameters:
  /// optimizer is only looked at. Throws for LBFGS, without an engine, and for an undefined loss (a step that was
  /// skipped), unless manual_optimization.
  void optimizer_step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure,
                      bool manual_optimization = false);

  /// Nothing: the engine clips.
  void clip_gradients(torch::optim::Optimizer& optimizer, double value = 0.0) const;

 private:
  ZeroEngine& engine(const char* call) const;
  void warn_of_own_backward();

  ZeroEngine* engine_ = nullptr;
  std::optional<ConvertOptions> deferred_;
  bool warned_ = false;
};

}  // namespace fp8::te
