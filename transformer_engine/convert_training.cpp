// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert_training.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "fp8/configs/module_types.h"
#include "fp8/configs/python_regex.h"
#include "fp8/measure/module_tree.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/transformer_engine/extra_state.h"
#include "fp8/transformer_engine/fp8_module.h"
#include "fp8/transformer_engine/linear.h"
#include "fp8/transformer_engine/quantized_operand.h"
#include "fp8/transformer_engine/training_handler.h"

namespace fp8::te {
namespace {

using configs::ModuleKind;
using configs::PythonRegex;
using measure::WeightModule;

std::vector<PythonRegex> compile(const std::vector<std::string>& patterns, const char* where) {
  std::vector<PythonRegex> compiled;
  for (const auto& p : patterns) compiled.emplace_back(p, where);
  return compiled;
}

const PythonRegex* first_match(const std::vector<PythonRegex>& patterns, const std::string& name) {
  for (const auto& p : patterns) {
    if (p.search(name)) return &p;
  }
  return nullptr;
}

/// Which modules become what, decided before anything is touched.
class Selection {
 public:
  explicit Selection(const TrainingOptions& options)
      : options_(options), allow_(compile(options.allow, "convert_modules: allow")), block_(compile(options.block, "convert_modules: block")) {
    for (const auto& rule : options.rules) {
      rules_.emplace_back(rule.pattern, "convert_modules: rules");
      if (rule.recipe.has_value()) recipes::validate(*rule.recipe);
    }
  }

  /// Why a module stays in high precision; nullopt: it is converted.
  std::optional<std::string> reason_to_keep(const WeightModule& m) const {
    const auto* type = configs::find_module_type(m.type);
    const bool linear = type != nullptr && (type->kind == ModuleKind::linear || type->kind == ModuleKind::row_parallel_linear);
    if (!linear) return "type " + m.type + " is trained in high precision";
    if (const auto* p = first_match(block_, m.name)) return "blocked by \"" + p->pattern() + "\"";
    if (!allow_.empty() && first_match(allow_, m.name) == nullptr) return "not in the allow list";
    const auto* rule = rule_for(m.name);
    if (rule != nullptr && !rule->recipe.has_value()) return "kept by \"" + rule->pattern + "\"";
    if (m.weight.dim() != 2) return "its weight has " + std::to_string(m.weight.dim()) + " dimensions";
    if (!at::isFloatingType(m.weight.scalar_type()) || m.weight.scalar_type() == at::kDouble) return std::string("its weight is ") + c10::toString(m.weight.scalar_type());
    if (options_.alignment == Alignment::leave && !aligned(m.weight)) return "sizes " + sizes_text(m.weight) + " are no multiples of 16";
    return std::nullopt;
  }

  const ModuleRecipe* rule_for(const std::string& name) const {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (rules_[i].search(name)) return &options_.rules[i];
    }
    return nullptr;
  }

  /// Rules whose pattern is found in no name: most often a slip.
  void warn_of_idle_rules(const std::vector<std::string>& names, std::vector<std::string>& warnings) const {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return rules_[i].search(name); })) warnings.push_back("rules[" + std::to_string(i) + "] \"" + rules_[i].pattern() + "\": no module has such a name");
    }
  }

  std::string scheme(const WeightModule& m) const {
    const auto* rule = rule_for(m.name);
    std::string text = "fp8 training, " + recipes::describe(rule != nullptr ? *rule->recipe : options_.recipe);
    if (options_.alignment == Alignment::pad && !aligned(m.weight)) {
      const auto up = [](std::int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
      text += ", padded to " + std::to_string(up(m.weight.size(0))) + "x" + std::to_string(up(m.weight.size(1)));
    }
    return text;
  }

 private:
  static bool aligned(const at::Tensor& w) { return w.size(0) % kAlignment == 0 && w.size(1) % kAlignment == 0; }
  static std::string sizes_text(const at::Tensor& w) { return std::to_string(w.size(0)) + "x" + std::to_string(w.size(1)); }

  const TrainingOptions& options_;
  std::vector<PythonRegex> allow_, block_, rules_;
};

void check_weight(const WeightModule& m) {
  TORCH_CHECK(m.weight.is_hpu(), "[convert_modules] module '", m.name, "': expected its weight on hpu, found it on ", m.weight.device());
  TORCH_CHECK(m.weight.is_contiguous(), "[convert_modules] module '", m.name, "': expected a contiguous weight, got strides ", m.weight.strides());
  const auto* tag = runtime::find_tag(m.weight);
  TORCH_CHECK(tag == nullptr || training_handler(m.weight) != nullptr, "[convert_modules] module '", m.name, "': its weight is in use by another handler (",
              tag == nullptr ? "" : tag->handler->describe(), "): expected a plain one; finalize the calibration or load the model anew");
}

void seed_state(const measure::MeasurementFile& file, const std::string& name, const recipes::Recipe& recipe, Fp8State& state, quant::ConversionReport& report) {
  const auto* m = file.find(name);
  if (m == nullptr || m->inputs.size() != 1 || m->inputs[0].empty() || !m->weight.has_value() || m->weight->empty()) {
    report.warnings.push_back("warm start: no measurement of '" + name + "': its first step is unscaled");
    return;
  }
  const auto largest = [](const measure::Amax& amax) {
    float most = 0.0f;
    for (const float a : amax) most = std::max(most, a);
    return most;
  };
  state.seed({largest(m->inputs[0]), largest(*m->weight)}, recipe);
}

/// Modules that run in fp8 by themselves, by name.
using TeModules = std::map<std::string, const Fp8Module*>;
TeModules te_modules(const torch::nn::Module& model) {
  TeModules found;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    if (const auto* module = dynamic_cast<const Fp8Module*>(item.value().get())) found[item.key()] = module;
  }
  return found;
}

/// Modules of transformer_engine get a rule's recipe; out of fp8 only the code around them can keep them.
void apply_rules(const std::map<std::string, const Fp8Module*>& modules, const Selection& selection, bool plan_only, std::vector<std::string>& warnings) {
  for (const auto& [name, module] : modules) {
    const auto* rule = selection.rule_for(name);
    if (rule == nullptr) continue;
    if (!rule->recipe.has_value()) {
      warnings.push_back("'" + name + "': a module of transformer_engine runs in fp8 by itself: the rule \"" + rule->pattern +
                         "\" does not keep it in high precision, fp8_autocast(false) around it does");
      continue;
    }
    for (const auto& state : module->fp8_states()) {
      if (!plan_only) state->set_recipe(rule->recipe);
    }
  }
}

/// A tensor is one weight however many modules share it.
const void* memory_of(const at::Tensor& t) { return t.unsafeGetTensorImpl(); }

quant::ConversionReport convert_all(std::vector<WeightModule> modules, const TeModules& own, const TrainingOptions& options) {
  recipes::validate(options.recipe);
  const Selection selection(options);
  quant::ConversionReport report;
  std::vector<WeightModule> chosen;
  std::vector<std::string> names;
  for (const auto& m : modules) names.push_back(m.name);
  for (const auto& [name, module] : own) names.push_back(name);
  selection.warn_of_idle_rules(names, report.warnings);
  for (auto& m : modules) {
    if (own.count(m.name) != 0) {
      report.skipped.push_back({m.name, "a module of transformer_engine runs in fp8 by itself"});
      continue;
    }
    if (auto reason = selection.reason_to_keep(m)) {
      report.skipped.push_back({m.name, std::move(*reason)});
      continue;
    }
    check_weight(m);
    report.converted.push_back({m.name, m.type, selection.scheme(m), m.weight.numel() * m.weight.element_size(), m.weight.numel() * m.weight.element_size()});
    chosen.push_back(std::move(m));
  }
  if (report.converted.empty()) report.warnings.push_back("no module was selected: the model trains in high precision");
  apply_rules(own, selection, options.plan_only, report.warnings);
  if (options.plan_only) return report;
  const Fp8LinearOptions linear = product_options(options.minimize_memory, std::nullopt, /*training=*/true);
  std::map<const void*, std::shared_ptr<TrainingHandler>> by_memory;
  for (const auto& m : chosen) {
    auto& handler = by_memory[memory_of(m.weight)];
    if (handler == nullptr) {
      const auto* before = training_handler(m.weight);
      const auto state = before != nullptr ? before->state() : std::make_shared<Fp8State>(m.name, 2, 1);
      const auto* rule = selection.rule_for(m.name);
      state->set_recipe(rule != nullptr ? rule->recipe : std::nullopt);
      if (options.warm_start.has_value()) seed_state(*options.warm_start, m.name, rule != nullptr ? *rule->recipe : options.recipe, *state, report);
      handler = std::make_shared<TrainingHandler>(state, linear);
      if (before != nullptr) runtime::untag_weight(m.weight);
    }
    runtime::tag_weight(m.weight, m.name, handler);
  }
  return report;
}

measure::MeasurementFile export_all(const std::vector<WeightModule>& modules, const TeModules& own) {
  measure::MeasurementFile file;
  std::int64_t steps = 0;
  for (const auto& m : modules) {
    const auto* handler = training_handler(m.weight);
    const auto te = own.find(m.name);
    if (handler == nullptr && (te == own.end() || te->second->fp8_states().size() != 1 || c10::isFloat8Type(m.weight.scalar_type()))) continue;
    const Fp8StateValues values = (handler != nullptr ? handler->state() : te->second->fp8_states()[0])->values();
    file.selected.push_back(m.name);
    if (values.amax_seen.empty() || values.amax_seen[0] <= 0.0f) continue;
    measure::Measurement one;
    one.module = m.name;
    one.inputs = {{values.amax_seen[0]}};
    one.weight = measure::Amax{amax_of(m.weight.detach().contiguous())};
    steps = std::max(steps, values.step);
    file.modules.push_back(std::move(one));
  }
  if (!file.modules.empty()) file.num_samples = steps;
  return file;
}
}  // namespace

quant::ConversionReport convert_for_training(const torch::nn::Module& model, const TrainingOptions& options) {
  return convert_all(measure::weight_modules(model), te_modules(model), options);
}
quant::ConversionReport convert_for_training(const std::vector<WeightModule>& modules, const TrainingOptions& options) {
  return convert_all(modules, {}, options);
}

int restore(const torch::nn::Module& model) {
  int count = 0;
  for (const auto& m : measure::weight_modules(model)) {
    if (training_handler(m.weight) == nullptr) continue;
    runtime::untag_weight(m.weight);
    ++count;
  }
  return count;
}

measure::MeasurementFile export_amax(const torch::nn::Module& model) { return export_all(measure::weight_modules(model), te_modules(model)); }
measure::MeasurementFile export_amax(const std::vector<WeightModule>& modules) { return export_all(modules, {}); }

std::map<std::string, CastStatistics> take_statistics(const torch::nn::Module& model) {
  std::map<std::string, CastStatistics> all;
  for (const auto& [name, state] : fp8_states(model)) all[name] = state->take_statistics();
  return all;
}

}  // namespace fp8::te
