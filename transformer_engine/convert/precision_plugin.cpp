// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert/precision_plugin.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>

#include <exception>

#include "fp8/runtime/device/device.h"

namespace fp8::te {
namespace {

struct Name {
  const char* spelling;
  const char* precision;
};
constexpr Name kPrecisions[] = {{"32-true", "32-true"}, {"32", "32-true"},        {"bf16-mixed", "bf16-mixed"},
                                {"bf16", "bf16-mixed"}, {"16-mixed", "16-mixed"}, {"fp8", "fp8"}};

/// Arguments of the other kind of conversion that were given: they have no effect.
std::vector<const char*> unused_options(const ConvertOptions& o) {
  std::vector<const char*> names;
  const auto add = [&](const char* name, bool given) {
    if (given) names.push_back(name);
  };
  if (!o.inference) {
    add("fp8_data_path", !o.fp8_data_path.empty());
    add("dump_stats_path", !o.dump_stats_path.empty());
    return names;
  }
  add("replace_layers", o.replace_layers);
  add("recipe", o.recipe.has_value());
  add("rules", !o.rules.empty());
  add("alignment", o.alignment != Alignment::any);
  add("minimize_memory", o.minimize_memory);
  add("warm_start", !o.warm_start.empty());
  return names;
}

quant::InferenceOptions inference_options(const ConvertOptions& o) {
  return {.quant = o.quant,
          .fp8_data_path = o.fp8_data_path,
          .dump_stats_path = o.dump_stats_path,
          .allow = o.allow,
          .block = o.block,
          .plan_only = o.plan_only};
}

/// Training handlers that the model has go, with a warning, once nothing can fail any more.
quant::ConversionReport convert_trained(const torch::nn::Module& model, const ConvertOptions& options) {
  std::vector<std::pair<at::Tensor, std::shared_ptr<runtime::OpHandler>>> training;
  for (const auto& p : model.parameters())
    if (training_handler(p) != nullptr) training.emplace_back(p, runtime::find_tag(p)->handler);
  auto report = quant::convert_for_inference(model, inference_options(options));
  if (options.plan_only || training.empty() || (report.converted.empty() && report.skipped.empty())) return report;
  for (const auto& [parameter, handler] : training) {
    static_cast<TrainingHandler&>(*handler).retire();
    if (training_handler(parameter) != nullptr) runtime::untag_weight(parameter);
  }
  report.warnings.push_back("training: the model was converted for training, " + std::to_string(training.size()) +
                            " weights lost their handlers and scales");
  return report;
}

}  // namespace

Availability is_fp8_available() { return trainer::HPUAccelerator::is_fp8_available(); }

Availability is_fp16_available() { return trainer::HPUAccelerator::is_fp16_available(); }

ForwardContext::ForwardContext(std::optional<at::ScalarType> autocast, std::optional<Fp8AutocastOptions> fp8) {
  if (autocast.has_value()) autocast_.emplace(*autocast);
  if (fp8.has_value()) fp8_.emplace(std::move(*fp8));
}

ForwardContext::~ForwardContext() noexcept(false) {
  if (fp8_.has_value()) fp8_->end();  // may throw, which optional's own end may not
}

HPUPrecisionPlugin::HPUPrecisionPlugin(const std::string& precision, const std::string& device) : device_(device) {
  for (const Name& name : kPrecisions)
    if (precision == name.spelling) precision_ = name.precision;
  TORCH_CHECK(!precision_.empty(), "[HPUPrecisionPlugin] found precision \"", precision,
              "\", allowed: ", io::joined(kPrecisions | std::views::transform(&Name::spelling)));
  std::string devices = "hpu";
  for (int i = 0; i < runtime::device_count(); ++i) devices += ", hpu:" + std::to_string(i);
  const bool known = !device.empty() && device.find_first_of(" ,") == std::string::npos &&
                     (" " + devices + ",").find(" " + device + ",") != std::string::npos;
  TORCH_CHECK(known, "[HPUPrecisionPlugin] found device \"", device, "\", allowed: ", devices);
  const bool fp8 = precision_ == "fp8";
  const Availability needed = fp8                        ? is_fp8_available()
                              : precision_ == "16-mixed" ? is_fp16_available()
                                                         : Availability{};
  TORCH_CHECK(needed.available, "[HPUPrecisionPlugin] ", fp8 ? "fp8" : "fp16", " not supported: ", needed.reason,
              ". (FP8_HPU_DEVICE: gaudi2, gaudi3)");
}

ForwardContext HPUPrecisionPlugin::forward_context(Fp8AutocastOptions options) const {
  if (precision_ == "bf16-mixed") return {at::kBFloat16, std::nullopt};
  if (precision_ == "16-mixed") return {at::kHalf, std::nullopt};
  if (precision_ == "32-true") return {std::nullopt, std::nullopt};
  options.enabled = true;
  options.recipe = recipe_;
  return {nested_bf16 ? std::optional<at::ScalarType>(at::kBFloat16) : std::nullopt, std::move(options)};
}

void HPUPrecisionPlugin::check_precision() const {
  TORCH_CHECK(precision_ == "fp8",
              "[convert_modules] HPUPrecisionPlugin.convert_modules() should only be used with precision=`fp8`. Found ",
              precision_);
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::nn::Module& model, const ConvertOptions& options) {
  check_precision();
  return convert_now(model, options);
}

void HPUPrecisionPlugin::set_recipe(const recipes::Recipe& recipe) {
  recipes::validate(recipe);
  recipe_ = recipe;
}

quant::ConversionReport HPUPrecisionPlugin::convert_now(torch::nn::Module& model, const ConvertOptions& options) {
  put_back_converted();
  quant::ConversionReport report;
  if (options.inference) {
    report = convert_trained(model, options);
  } else {
    TrainingOptions training;
    training.recipe = options.recipe.value_or(recipe_);
    training.rules = options.rules;
    training.allow = options.allow;
    training.block = options.block;
    training.alignment = options.alignment;
    training.minimize_memory = options.minimize_memory;
    training.plan_only = options.plan_only;
    if (!options.warm_start.empty()) training.warm_start = measure::read_measurements(options.warm_start);
    if (options.replace_layers || options.plan_only) {
      report = convert_for_training(model, training);
    } else {
      report.warnings.emplace_back(
          "replace_layers is false: the recipe is kept for forward_context(), no module was converted");
    }
    if (!options.plan_only) set_recipe(training.recipe);
  }
  for (const char* name : unused_options(options))
    report.warnings.push_back(
        io::message("{} has no effect with inference = {}", name, options.inference ? "true" : "false"));
  return report;
}

int HPUPrecisionPlugin::restore(torch::nn::Module& model) const {
  const int trained = te::restore(model);
  return trained + quant::restore_inference(model);
}

quant::ConversionReport HPUPrecisionPlugin::convert_modules(torch::jit::Module& model,
                                                            const ConvertOptions& options) const {
  check_precision();
  TORCH_CHECK(
      options.inference,
      "[convert_modules] expected inference = true for a TorchScript module: training is of torch::nn::Module trees");
  return quant::convert_for_inference(model, inference_options(options));
}

CpuAutocastGuard::CpuAutocastGuard()
    : enabled_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
}

CpuAutocastGuard::~CpuAutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();  // casts of weights that a step will change
  at::autocast::set_autocast_enabled(at::kCPU, enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, dtype_);
}

HalfPrecisionContext::HalfPrecisionContext(bool bf16, HalfPrecisionBackend backend) {
  if (!bf16) return;
  if (backend == HalfPrecisionBackend::cpu_amp)
    cpu_.emplace();
  else
    hpu_.emplace(at::kBFloat16);
}

trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       const Fp8AutocastOptions& regions) {
  return with_precision(plugin, std::move(options), [regions](const trainer::ForwardInfo&) { return regions; });
}

trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       std::function<Fp8AutocastOptions(const trainer::ForwardInfo&)> regions) {
  const auto failure = std::make_shared<std::exception_ptr>();  // of the end of a region
  options.forward_context = [&plugin, regions = std::move(regions), failure](const trainer::ForwardInfo& info) {
    auto step = regions(info);
    if (info.training && info.microbatches > 1) step.is_first_microbatch = info.microbatch == 0;
    return std::shared_ptr<void>(new ForwardContext(plugin.forward_context(step)), [failure](ForwardContext* context) {
      try {
        delete context;
      } catch (const std::exception&) {
        *failure = std::current_exception();  // a shared_ptr's deleter must not throw
      }
    });
  };
  options.context_ended = [failure] {
    if (*failure != nullptr) std::rethrow_exception(std::exchange(*failure, nullptr));
  };
  return options;
}

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
              "Allowed: optimizers that evaluate the closure once");
  ZeroEngine& e = engine("optimizer_step");
  const at::Tensor loss = closure();
  TORCH_CHECK(manual_optimization || loss.defined(),
              "[HPUDeepSpeedPrecisionPlugin] optimizer_step: found an undefined loss, allowed: a tensor. Skipping "
              "backward by returning `None` from your `training_step` is not supported by `DeepSpeed`");
  e.step();
}

void HPUDeepSpeedPrecisionPlugin::clip_gradients(torch::optim::Optimizer&, double) const {}

}  // namespace fp8::te
