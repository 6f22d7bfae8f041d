// SPDX-License-Identifier: Apache-2.0
// The one call that serving and training code needs: pick a precision, convert the model. A thin front over measure and
// quant.
#pragma once

#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/transformer_engine/convert/convert_training.h"

namespace fp8::te {

using quant::QuantSource;

/// The options of convert_modules(). inference = false (training): the fields of TrainingOptions; inference = true:
/// quant and where the measurements are. What has no effect there but was given is named in the report's warnings.
struct ConvertOptions {
  bool replace_layers = false;  ///< training: give linear modules their fp8 handlers; false: only remember the recipe
  std::optional<recipes::Recipe> recipe = {};  ///< of forward_context(); default DelayedScaling::habana()
  bool inference = false;
  QuantSource quant = true;
  std::string fp8_data_path =
      {};  ///< measurements are PATH/inc_output/measure_hooks_maxabs.json and so on, without a config
  std::string dump_stats_path = {};  ///< their prefix, where neither fp8_data_path nor a config says it; default:
                                     ///< $HABANA_LOGS/inc_output/measure if that is set, else fp8_measure/inc_output
  /// Python regular expressions of module names; empty allow: all. For inference on top of what the config selects.
  std::vector<std::string> allow = {}, block = {};
  std::vector<ModuleRecipe> rules = {};  ///< training: recipes of single modules
  Alignment alignment = Alignment::any;
  bool minimize_memory = false;
  bool plan_only = false;       ///< report with bytes, flops and expected errors, change nothing
  std::string warm_start = {};  ///< training: measurement file whose amaxes give the first step's scales
};

using trainer::Availability;
/// Availability on the emulated device (FP8_HPU_DEVICE): the first generation has neither. The reason is the vendor's.
Availability is_fp8_available();
Availability is_fp16_available();

/// The regions of one step, as RAII: autocast (bf16 or f16), with fp8_autocast inside for precision fp8.
class ForwardContext {
 public:
  ForwardContext(std::optional<at::ScalarType> autocast, std::optional<Fp8AutocastOptions> fp8);
  /// Throws what the end of the fp8 region throws.
  ~ForwardContext() noexcept(false);
  ForwardContext& operator=(ForwardContext&&) = delete;

 private:
  std::optional<runtime::autocast::AutocastGuard> autocast_;
  std::optional<fp8_autocast> fp8_;
};

/// "32-true" ("32"), "bf16-mixed" ("bf16"), "16-mixed", "fp8".
///
///   te::HPUPrecisionPlugin plugin("fp8");
///   plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
///   { auto region = plugin.forward_context(); loss = step(batch); }      bf16 autocast, fp8_autocast inside:
///                                                                        outputs are bf16
///   loss.backward();
class HPUPrecisionPlugin {
 public:
  /// Throws c10::Error listing the allowed values for any other precision or device ("hpu", "hpu:0" and on), and for
  /// fp8 and 16-mixed on a device that has none.
  explicit HPUPrecisionPlugin(const std::string& precision = "32-true", const std::string& device = "hpu");
  virtual ~HPUPrecisionPlugin() = default;

  const std::string& precision() const { return precision_; }
  const std::string& device() const { return device_; }
  /// The recipe of forward_context().
  const recipes::Recipe& recipe() const { return recipe_; }
  /// With precision fp8, nested_bf16 = false leaves f32 tensors f32 (the regions of later vendor releases).
  bool nested_bf16 = true;

  /// The regions for one training, validation, test or prediction step. The options' enabled and recipe are the
  /// plugin's.
  ForwardContext forward_context(Fp8AutocastOptions options = {}) const;
  /// f (a function, a lambda, mutable or not, a pointer to a member function), each call of it in its own
  /// forward_context(). The plugin must outlive what is returned; its recipe is the one of each call.
  template <class F>
  auto in_forward_context(F f) const {
    return [f = std::make_shared<F>(std::move(f)), this](auto&&... arguments) -> decltype(auto) {
      const auto region = forward_context();
      return std::invoke(*f, std::forward<decltype(arguments)>(arguments)...);
    };
  }

  /// Training: remembers the recipe and, with replace_layers, gives every linear module its handler
  /// (convert_for_training). Measuring: hangs watchers on the selected weights; run data, then
  /// fp8::measure::finalize_calibration(model) (also on destruction) writes the files. Quantizing: ends a calibration
  /// of the model that is going on, reads the measurements (unless the scale method needs none) and converts.
  /// Parameters keep identity, device and requires_grad. Without a QUANT_CONFIG every Linear and Conv2d is measured,
  /// and static per-tensor scales of our own convention are used. A model that was converted for training loses those
  /// handlers. When it throws, neither the model nor the plugin has changed. Throws c10::Error or io::Error naming key
  /// or module; needs precision "fp8" and a model on hpu.
  virtual quant::ConversionReport convert_modules(torch::nn::Module& model, const ConvertOptions& options = {});
  /// Inference only.
  quant::ConversionReport convert_modules(torch::jit::Module& model, const ConvertOptions& options) const;

  /// Back to high precision, parameters the same objects. Training: the handlers go, the model is what it was.
  /// Inference: weights become what their codes stand for, in the dtype they had; a calibration ends. Returns how many
  /// weights and modules it was.
  int restore(torch::nn::Module& model) const;

 protected:
  void check_precision() const;
  /// convert_modules() without the check of the precision.
  quant::ConversionReport convert_now(torch::nn::Module& model, const ConvertOptions& options);
  void set_recipe(const recipes::Recipe& recipe);

 private:
  std::string precision_, device_;
  recipes::Recipe recipe_ = recipes::DelayedScaling::habana();
};

// transformers' `bf16` and `half_precision_backend`: which device's operations a region casts to bf16.
//
//   hpu_amp   autocast on hpu, with the device's lists (runtime/autocast)
//   cpu_amp   autocast on the CPU, with LibTorch's: for a model that trains there; operations on hpu are left alone

using fp8::name_of;

enum class HalfPrecisionBackend : std::uint8_t { hpu_amp, cpu_amp };
constexpr auto names_of(HalfPrecisionBackend) {
  return names_up_to<HalfPrecisionBackend::cpu_amp>("hpu_amp", "cpu_amp");
}

/// A region of LibTorch's bf16 autocast on the CPU; the state before it comes back at its end. What was cast is kept
/// until the outermost region ends, as in torch.autocast.
class CpuAutocastGuard {
 public:
  CpuAutocastGuard();
  ~CpuAutocastGuard();
  CpuAutocastGuard& operator=(CpuAutocastGuard&&) = delete;

 private:
  bool enabled_;
  at::ScalarType dtype_;
};

/// The region of one step: { const HalfPrecisionContext region(arguments.bf16, backend); loss = step(batch); }
/// bf16 = false: none.
class HalfPrecisionContext {
 public:
  explicit HalfPrecisionContext(bool bf16, HalfPrecisionBackend backend = HalfPrecisionBackend::hpu_amp);

 private:
  std::optional<runtime::autocast::AutocastGuard> hpu_;
  std::optional<CpuAutocastGuard> cpu_;
};

// A plugin's regions around the steps of the trainer.
//
//   te::HPUPrecisionPlugin plugin("bf16-mixed");
//   te::Trainer trainer(te::with_precision(plugin, {.max_epochs = 3}));

/// `options` with every forward in plugin.forward_context(regions), where a step's first batch alone casts weights
/// anew; what the end of a training step's region throws leaves fit(). The plugin must outlive the trainer. 16-mixed
/// wants options.grad_scaler, too, and a module that is trained in fp8 and resumed get_extra_state() in its
/// extra_state().
trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       const Fp8AutocastOptions& regions = {});
/// As above, with regions that depend on the step.
trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       std::function<Fp8AutocastOptions(const trainer::ForwardInfo&)> regions);

}  // namespace fp8::te

// The precision plugin for training whose optimizer, gradients and clipping belong to a ZeRO engine. Engines re-arrange
// a model's parameters when they start, so conversion waits for them.
//
//   te::HPUDeepSpeedPrecisionPlugin plugin("fp8");
//   plugin.convert_modules(*model, {.replace_layers = true});     remembers
//   engine.initialize(*model);   plugin.attach(engine);           converts engine.module()
//   plugin.optimizer_step(optimizer, [&] {
//     auto region = plugin.forward_context(); auto loss = step(batch); ...; return loss;
//   });

namespace fp8::te {

/// The calls of an engine that the plugin needs.
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
  /// As above, for a model that may have a backward(loss) of its own: a warning, once, says that it is not called.
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
