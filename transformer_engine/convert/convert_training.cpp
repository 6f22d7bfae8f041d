// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert/convert_training.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <torch/nn/module.h>

#include "fp8/measure/files/observer_types.h"
#include "fp8/quant/damage/damage.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {
namespace {

using measure::WeightModule;

bool is_linear(const std::string& class_name) {
  return class_name == kTorchAttention || configs::is_linear(class_name);
}

/// Which modules become what, decided before anything is touched.
class Selection {
 public:
  explicit Selection(const TrainingOptions& options) : options_(options), lists_(options.allow, options.block) {
    for (const auto& rule : options.rules)
      if (rule.recipe.has_value()) recipes::validate(*rule.recipe);
  }

  /// Why a module stays in high precision; nullopt: it is converted.
  std::optional<std::string> reason_to_keep(const WeightModule& m) const {
    if (!is_linear(m.type)) return "type " + m.type + " is trained in high precision";
    if (auto reason = reason_by_name(m.name)) return reason;
    TORCH_CHECK(m.weight.numel() != 0 && m.weight.dim() > 1, "[convert_modules] module '", m.name,
                "': expected a weight of two dimensions with elements, found sizes ", m.weight.sizes(),
                ": an engine that shards parameters has its values; have it leave this module out, or leave it in high "
                "precision");
    if (m.weight.dim() != 2) return "its weight has " + std::to_string(m.weight.dim()) + " dimensions";
    if (!at::isFloatingType(m.weight.scalar_type()) || m.weight.scalar_type() == at::kDouble)
      return std::string("its weight is ") + c10::toString(m.weight.scalar_type());
    if (options_.alignment == Alignment::leave && !aligned(m.weight))
      return "sizes " + sizes_text(m.weight) + " are no multiples of 16";
    return std::nullopt;
  }

  /// The part of it that the lists and rules decide.
  std::optional<std::string> reason_by_name(const std::string& name) const {
    if (auto reason = lists_.reason_to_keep(name)) return reason;
    const auto* rule = rule_for(name);
    if (rule != nullptr && !rule->recipe.has_value()) return "kept by \"" + rule->pattern + "\"";
    return std::nullopt;
  }

  const ModuleRecipe* rule_for(const std::string& name) const {
    const auto i = rules_.first_match(name);
    return i.has_value() ? &options_.rules[*i] : nullptr;
  }

  /// Of a module that is converted.
  const recipes::Recipe& recipe_of(const std::string& name) const {
    const auto* rule = rule_for(name);
    return rule != nullptr ? *rule->recipe : options_.recipe;
  }

  void warn_of_idle_patterns(const std::vector<std::string>& names, std::vector<std::string>& warnings) const {
    lists_.warn_of_idle(names, warnings);
    quant::warn_of_idle("rules", rules_, names, warnings);
  }

  std::string scheme(const WeightModule& m) const {
    std::string text = "fp8 training, " + recipes::describe(recipe_of(m.name));
    if (m.name.ends_with(kPackedProjections))
      text += " where query, key and value are one tensor, else in high precision";
    if (aligned(m.weight)) return text;
    if (options_.alignment == Alignment::pad) {
      const auto up = [](std::int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
      text += ", padded to " + std::to_string(up(m.weight.size(0))) + "x" + std::to_string(up(m.weight.size(1)));
    } else {
      text += ", " + sizes_text(m.weight) + " unpadded";
    }
    return text;
  }

 private:
  static bool aligned(const at::Tensor& w) { return w.size(0) % kAlignment == 0 && w.size(1) % kAlignment == 0; }
  static std::vector<std::string> patterns_of(const std::vector<ModuleRecipe>& rules) {
    std::vector<std::string> patterns;
    for (const auto& rule : rules) patterns.push_back(rule.pattern);
    return patterns;
  }
  static std::string sizes_text(const at::Tensor& w) {
    return std::to_string(w.size(0)) + "x" + std::to_string(w.size(1));
  }

  const TrainingOptions& options_;
  quant::NameLists lists_;
  configs::NamePatterns rules_ = quant::argument_patterns("rules", patterns_of(options_.rules));
};

void check_weight(const WeightModule& m) {
  TORCH_CHECK(m.weight.is_leaf(), "[convert_modules] module '", m.name,
              "': expected a parameter, found one that is computed from others (a view of a flat parameter, or a "
              "parametrization), which the next step does not multiply with");
  TORCH_CHECK(m.weight.is_hpu(), "[convert_modules] module '", m.name, "': expected its weight on hpu, found it on ",
              m.weight.device());
  TORCH_CHECK(m.weight.is_contiguous(), "[convert_modules] module '", m.name,
              "': expected a contiguous weight, got strides ", m.weight.strides());
  const auto* tag = runtime::find_tag(m.weight);
  TORCH_CHECK(tag == nullptr || training_handler(m.weight) != nullptr, "[convert_modules] module '", m.name,
              "': its weight is in use by another handler (", tag == nullptr ? "" : tag->handler->describe(),
              "): expected a plain one; finalize the calibration or restore() the model");
}

/// Matrices that no module of the table holds (a parameter of the user's own, a transposed convolution): kept, and the
/// report says so.
void report_other_matrices(const torch::nn::Module& model, const std::vector<WeightModule>& weights,
                           quant::ConversionReport& report) {
  std::set<const void*> known;
  for (const auto& m : weights) known.insert(m.weight.unsafeGetTensorImpl());
  std::set<std::string> listed;  // by name too: a tied member leaves its registered parameter behind
  for (const auto& m : weights) listed.insert(m.name);
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    if (listed.contains(item.key()) || dynamic_cast<const Fp8Module*>(item.value().get()) != nullptr) continue;
    for (const auto& p : item.value()->named_parameters(/*recurse=*/false)) {
      if (!p.value().defined() || p.value().dim() < 2 || !known.insert(p.value().unsafeGetTensorImpl()).second)
        continue;
      const std::string name = item.key().empty() ? p.key() : item.key() + "." + p.key();
      report.skipped.push_back({name, "a parameter of " + item.value()->name() + ", which is no linear module"});
    }
  }
}

void seed_state(const measure::MeasurementFile& file, const std::string& name, const recipes::Recipe& recipe,
                Fp8State& state, quant::ConversionReport& report) {
  const auto* m = file.find(name);
  if (m == nullptr || m->inputs.size() != 1 || m->inputs[0].empty() || !m->weight.has_value() || m->weight->empty()) {
    report.warnings.push_back("warm start: no measurement of '" + name + "': its first step is unscaled");
    return;
  }
  state.seed({std::ranges::max(m->inputs[0]), std::ranges::max(*m->weight)}, recipe);
}

/// Modules that run in fp8 by themselves, by name.
using TeModules = std::map<std::string, const Fp8Module*>;
TeModules te_modules(const torch::nn::Module& model) {
  TeModules found;
  for (const auto& item : model.named_modules("", /*include_self=*/true))
    if (const auto* module = dynamic_cast<const Fp8Module*>(item.value().get())) found[item.key()] = module;
  return found;
}

/// Modules of transformer_engine are told: their products run in fp8 by themselves.
void apply_rules(const TeModules& modules, const Selection& selection) {
  for (const auto& [name, module] : modules) {
    const bool keep = selection.reason_by_name(name).has_value();
    const auto* rule = selection.rule_for(name);
    for (const auto& state : module->fp8_states()) {
      state->keep_high_precision(keep);
      if (!keep && rule != nullptr) state->set_recipe(rule->recipe);
    }
  }
}

/// True if any of them runs in fp8.
bool report_te_modules(const TeModules& modules, const Selection& selection, quant::ConversionReport& report) {
  bool any = false;
  for (const auto& [name, module] : modules) {
    if (module->fp8_states().empty()) continue;
    const auto reason = selection.reason_by_name(name);
    any = any || !reason.has_value();
    report.skipped.push_back({name, reason.value_or("a module of transformer_engine runs in fp8 by itself")});
  }
  return any;
}

/// A tensor is one weight however many modules share it.
const void* memory_of(const at::Tensor& t) { return t.unsafeGetTensorImpl(); }

/// The module that owns a weight of this name: its own, or the one whose parameter it is.
class Owners {
 public:
  explicit Owners(const torch::nn::Module* model) {
    if (model == nullptr) return;
    for (const auto& item : model->named_modules("", /*include_self=*/true)) modules_[item.key()] = item.value();
  }
  std::shared_ptr<const torch::nn::Module> of(const std::string& name) const {
    auto found = modules_.find(name);
    const auto dot = name.rfind('.');
    if (found == modules_.end()) found = modules_.find(dot == std::string::npos ? "" : name.substr(0, dot));
    return found == modules_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

/// Decides about every weight and checks the chosen ones; changes nothing. model: null if the weights are all there is.
std::vector<WeightModule> choose(const torch::nn::Module* model, const std::vector<WeightModule>& weights,
                                 const TeModules& own, const Selection& selection, bool plan_only,
                                 quant::ConversionReport& report) {
  std::vector<WeightModule> chosen;
  std::vector<std::string> names;
  std::vector<const WeightModule*> kept;
  std::map<const void*, std::string> owners;
  for (const auto& [name, module] : own) names.push_back(name);
  const bool te_in_fp8 = report_te_modules(own, selection, report);
  for (const auto& m : weights) {
    names.push_back(m.name);
    if (own.contains(m.name)) continue;
    if (auto reason = selection.reason_to_keep(m)) {
      report.skipped.push_back({m.name, std::move(*reason)});
      if (is_linear(m.type)) kept.push_back(&m);
      continue;
    }
    check_weight(m);
    quant::ConvertedModule line{m.name, m.type, selection.scheme(m)};
    if (const auto [owner, first] = owners.emplace(memory_of(m.weight), m.name); !first) {
      line.scheme += " (tied to " + owner->second + ")";
    } else {
      line.bytes_before = line.bytes_after = m.weight.numel() * m.weight.element_size();
      if (plan_only) add_plan(m.weight, selection.recipe_of(m.name), line);
    }
    report.converted.push_back(std::move(line));
    chosen.push_back(m);
  }
  for (const auto* m : kept) {
    const auto owner = owners.find(memory_of(m->weight));
    if (owner != owners.end())
      report.warnings.push_back(
          io::message("'{}' shares the weight of '{}' and runs in fp8 with it", m->name, owner->second));
  }
  if (model != nullptr) report_other_matrices(*model, weights, report);
  selection.warn_of_idle_patterns(names, report.warnings);
  if (report.converted.empty() && !te_in_fp8)
    report.warnings.emplace_back("no module was selected: the model trains in high precision");
  return chosen;
}

quant::ConversionReport convert_all(const torch::nn::Module* model, const std::vector<WeightModule>& weights,
                                    const TeModules& own, const TrainingOptions& options) {
  recipes::validate(options.recipe);
  if (options.warm_start.has_value()) measure::require_amax(*options.warm_start);
  const Selection selection(options);
  quant::ConversionReport report;
  const std::vector<WeightModule> chosen = choose(model, weights, own, selection, options.plan_only, report);
  const auto keeps_amaxes = [&](const WeightModule& m) {
    return recipes::scaling_of(selection.recipe_of(m.name)).keeps_history();
  };
  if (options.warm_start.has_value() && !chosen.empty() && std::ranges::none_of(chosen, keeps_amaxes))
    report.warnings.emplace_back("warm start: has no effect, no module has delayed scaling");
  if (options.plan_only) return report;
  apply_rules(own, selection);
  const Fp8LinearOptions linear = product_options(options.minimize_memory, std::nullopt, /*training=*/true);
  std::optional<io::FlagSetting> minimizes;
  if (options.minimize_memory) minimizes = {"1", io::FlagSource::call, "convert_modules()"};
  io::override_flag("PT_HPU_FP8_MINIMIZE_MEMORY", std::move(minimizes));
  const Owners owners(model);
  std::map<const void*, std::shared_ptr<TrainingHandler>> by_memory;
  for (const auto& m : chosen) {
    auto& handler = by_memory[memory_of(m.weight)];
    if (handler == nullptr) {
      auto* before = training_handler(m.weight);
      const bool goes_on = before != nullptr && !before->state()->follows();  // not a copy that was never converted
      const auto state = goes_on ? before->state() : std::make_shared<Fp8State>(m.name, 2, 1);
      const auto* rule = selection.rule_for(m.name);
      state->set_recipe(rule != nullptr ? rule->recipe : std::nullopt);
      if (options.warm_start.has_value() && keeps_amaxes(m))
        seed_state(*options.warm_start, m.name, selection.recipe_of(m.name), *state, report);
      handler = std::make_shared<TrainingHandler>(state, linear);
      if (before != nullptr) {
        if (model == nullptr && goes_on) handler->succeed(*before);
        before->retire();
        runtime::untag_weight(m.weight);
      }
    }
    if (const auto owner = owners.of(m.name)) handler->follow(owner);
    runtime::tag_weight(m.weight, m.name, handler);
  }
  model != nullptr ? remember_converted(*model) : remember_converted(chosen);
  return report;
}

measure::MeasurementFile export_all(const std::vector<WeightModule>& modules, const TeModules& own) {
  measure::MeasurementFile file;
  std::int64_t steps = 0;
  for (const auto& m : modules) {
    const auto* handler = training_handler(m.weight);
    const auto te = own.find(m.name);
    if (handler == nullptr &&
        (te == own.end() || te->second->fp8_states().size() != 1 || c10::isFloat8Type(m.weight.scalar_type())))
      continue;
    const Fp8StateValues values = (handler != nullptr ? handler->state() : te->second->fp8_states()[0])->values();
    if (values.amax_seen.empty() || values.amax_seen[0] <= 0.0f)
      continue;  // not listed: readers of the file leave it in high precision
    file.selected.push_back(m.name);
    measure::Measurement one;
    one.module = m.name;
    one.inputs = {{values.amax_seen[0]}};
    one.weight = measure::Amax{runtime::amax_of(m.weight)};
    steps = std::max(steps, values.step);
    file.modules.push_back(std::move(one));
  }
  if (!file.modules.empty()) file.num_samples = steps;
  return file;
}

double length_of(const at::Tensor& t) {
  return at::linalg_vector_norm(t, 2, std::nullopt, false, at::kDouble).item<double>();
}

std::int64_t bytes_of(const runtime::Fp8Tensor& o) {
  const std::int64_t scales =
      o.grid.defined() ? static_cast<std::int64_t>(o.grid.nbytes()) : static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::int64_t>(o.codes.nbytes()) + scales;
}

}  // namespace

quant::ConversionReport convert_for_training(const torch::nn::Module& model, const TrainingOptions& options) {
  return convert_all(&model, trained_weights(model), te_modules(model), options);
}
quant::ConversionReport convert_for_training(const std::vector<WeightModule>& modules, const TrainingOptions& options) {
  return convert_all(nullptr, modules, {}, options);
}

int restore(const torch::nn::Module& model) {
  int count = 0;
  for (const auto& m : trained_weights(model)) {
    auto* handler = training_handler(m.weight);
    if (handler == nullptr) continue;
    handler->retire();
    runtime::untag_weight(m.weight);
    ++count;
  }
  for (const auto& [name, module] : te_modules(model))
    for (const auto& state : module->fp8_states()) state->keep_high_precision(false);
  return count;
}

// Attention's projections are left out: quantization knows no such module.
measure::MeasurementFile export_amax(const torch::nn::Module& model) {
  return export_all(measure::weight_modules(model), te_modules(model));
}
measure::MeasurementFile export_amax(const std::vector<WeightModule>& modules) { return export_all(modules, {}); }

quant::ConversionReport to_inference(const torch::nn::Module& model) {
  quant::PlanOptions options;
  options.activations = quant::ActivationScaling::static_tensor;
  options.measurements = export_amax(model);
  TORCH_CHECK(!options.measurements->modules.empty(),
              "[to_inference] expected a model that trained in fp8 (convert_for_training(), then steps in an "
              "fp8_autocast region), found no module with recorded amaxes");
  restore(model);
  return quant::convert(model, options);
}

std::map<std::string, CastStatistics> take_statistics(const torch::nn::Module& model) {
  std::map<std::string, CastStatistics> all;
  for (const auto& [name, state] : fp8_states(model)) all[name] = state->take_statistics();
  return all;
}

void add_plan(const at::Tensor& weight, const recipes::Recipe& recipe, quant::ConvertedModule& line) {
  const at::NoGradGuard no_grad;
  const auto dialect = runtime::device_dialect("convert_modules");
  line.flops_per_row = 6.0 * static_cast<double>(weight.numel());
  const at::Tensor w = weight.detach().contiguous();
  const float amax = runtime::amax_of(w);
  const bool usable = amax > 0.0f && std::isfinite(amax);
  Fp8State state(line.name, 2, 1);
  if (usable) state.seed({amax, amax}, recipe);
  StepScales scales;
  const Fp8StateValues values = state.values();
  const auto fill = [](const recipes::TensorMeta& meta, std::vector<float>& scale, std::vector<float>& scale_inv) {
    scale.assign(meta.scale.data(), meta.scale.data() + meta.scale.size());
    scale_inv.assign(meta.scale_inv.data(), meta.scale_inv.data() + meta.scale_inv.size());
  };
  fill(values.forward, scales.scale, scales.scale_inv);
  fill(values.hybrid, scales.hybrid_scale, scales.hybrid_scale_inv);
  if (scales.scale.empty()) scales.scale = scales.scale_inv = {1.0f, 1.0f};
  const OperandPair pair = quantize_operand(
      w,
      {.recipe = recipe, .dialect = dialect, .role = Role::weight, .both_stay = true, .scales = &scales, .index = 1});
  line.operand_bytes = bytes_of(pair.columns);
  if (pair.rows.codes.defined() && !pair.rows.codes.is_same(pair.columns.codes))
    line.operand_bytes += bytes_of(pair.rows);
  if (!usable) return;
  const double weight_error =
      length_of(at::sub(runtime::dequantize(pair.columns, at::kFloat), w.to(at::kFloat))) / length_of(w);
  line.expected_error =
      std::hypot(weight_error, quant::expected_rounding(recipes::forward_format(recipes::format_of(recipe))));
}

}  // namespace fp8::te
