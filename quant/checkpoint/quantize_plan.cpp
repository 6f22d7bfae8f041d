// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/quantize_plan.h"

#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/plan/rules.h"

namespace fp8::quant {
namespace {

constexpr const char* kTransposed = "Conv1D";
constexpr const char* kScaleEndings[] = {".weight_scale", ".weight_scale_inv", ".input_scale", ".scale_weight",
                                         ".scale_input"};

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.size() - 7); }
bool is_weight(const std::string& tensor) { return tensor.size() > 7 && tensor.ends_with(".weight"); }

bool is_linear(const PlannedModule& m) {
  return (m.info.type == "Linear" || m.info.type == kExpertType) && m.info.shape.size() == 2;
}

/// A head that readers are known to take as a tensor of its own.
bool is_known_tie(const CheckpointModule& head) {
  return head.name == kTiedHead && head.tensor == kTiedEmbedding + std::string(".weight");
}

std::string with_product(const std::string& through) {
  return "readers run it as one product with " + through + ", which is not converted";
}

}  // namespace

CheckpointPlan::CheckpointPlan(const std::filesystem::path& model, const CheckpointOptions& options)
    : options_(options),
      form_(form_named(options.form)),
      config_(read_model_config(model, &form_)),
      source_(model),
      modules_(source_, config_, choice(options)) {
  const auto incomplete = checked();
  nonfinite_ = allowed_nonfinite();
  const PlanOptions selection = without_nonfinite(options.plan);
  stacked_ = StackedExperts(source_, config_, options.plan.experts, selection.keep);
  plan_ = make_plan(find_modules(), find_nodes(), plan_options(selection));
  plan_.warnings.insert(plan_.warnings.end(), incomplete.begin(), incomplete.end());
  check_family();
  leave_unwritable();
  refuse_tied_heads();
  note_experts();
  note_vllm();
  list_transposed();
  leave_halved_groups();
  refuse_unscaled_parts();
  place_nodes();
  drop_idle_hints();
  plan_.spell(options.plan.spelling);
  check_model();
}

ModuleChoice CheckpointPlan::choice(const CheckpointOptions& options) {
  ModuleChoice modules = options.modules;
  const auto& plan = options.plan;
  const auto weights = plan.weights.value_or(
      plan.activations == ActivationScaling::static_tensor ? WeightGranularity::tensor : WeightGranularity::channel);
  modules.scale_rows = weights == WeightGranularity::block                                 ? plan.block.rows
                       : weights == WeightGranularity::channel && !plan.config.has_value() ? 1
                                                                                           : 0;
  return modules;
}

/// The source is in high precision, whole, and has the shapes that its config promises. Warnings of what a family
/// without a row seems to lack.
std::vector<std::string> CheckpointPlan::checked() const {
  require_no_codes(source_, form_.needs_mxfp4() ? mxfp4_stacks(source_) : std::vector<std::string>());
  auto warnings = require_complete(source_, config_, modules_);
  require_promised_shapes(source_, config_);
  return warnings;
}

/// The tensors with NaN or Inf, if those are allowed; else the code that reads one refuses it.
std::map<std::string, NonFinite> CheckpointPlan::allowed_nonfinite() const {
  return options_.allow_nonfinite ? find_nonfinite(source_, recipes::Dialect::ocp, {}, options_.stop)
                                  : std::map<std::string, NonFinite>();
}

/// Keeps what can't be quantized: a weight with NaN or Inf, and what engines run as one product with it.
PlanOptions CheckpointPlan::without_nonfinite(PlanOptions o) const {
  if (nonfinite_.empty()) return o;
  std::map<std::string, std::string> groups;
  for (const auto& [tensor, found] : nonfinite_) {
    const std::string module = is_weight(tensor) ? module_of(tensor) : tensor,
                      reason = "holds " + found.text(static_cast<std::uint64_t>(source_.info(tensor).numel()));
    o.keep[module] = reason;
    for (const auto& m : modules_.all())
      if (m.tied && m.tensor == tensor) o.keep[m.name] = reason;
    if (const std::string group = fuse_group_of(module); !group.empty()) groups.emplace(group, module);
  }
  for (const auto& tensor : source_.names()) {
    if (!is_weight(tensor)) continue;
    const auto group = groups.find(fuse_group_of(module_of(tensor)));
    if (group != groups.end())
      o.keep.emplace(module_of(tensor),
                     "readers run it as one product with " + group->second + ", which holds NaN or Inf");
  }
  return o;
}

/// The tensor that holds a module's weight: its own, the embedding's for a tied head, or one that stacks an expert's.
const std::string& CheckpointPlan::source_tensor(const std::string& module) const {
  const auto* slice = stacked_.slice_of(module);
  return slice != nullptr ? slice->tensor : modules_.find(module)->tensor;
}

WeightSlice CheckpointPlan::source_of(const std::string& module) const {
  const auto* slice = stacked_.slice_of(module);
  return slice != nullptr ? *slice : whole_weight(source_.info(source_tensor(module)));
}

std::vector<ModuleInfo> CheckpointPlan::find_modules() const {
  std::vector<ModuleInfo> modules;
  for (const auto& m : modules_.all()) {
    if (!stacked_.modules_of(m.tensor).empty()) continue;
    const bool expert = options_.plan.config.has_value() &&
                        expert_in_memory(m.name).has_value();  // the class that a config's lists know
    modules.push_back({m.name, expert ? kExpertType : CheckpointModules::type_of(m), m.shape, m.why});
  }
  for (auto& m : stacked_.modules()) {
    if (options_.plan.config.has_value() && expert_in_memory(m.name).has_value()) m.type = kExpertType;
    modules.push_back(std::move(m));
  }
  return modules;
}

std::vector<std::string> CheckpointPlan::names_of_modules() const {
  std::vector<std::string> names;
  for (const auto& tensor : source_.names())
    if (is_weight(tensor)) names.push_back(module_of(tensor));
  for (const auto& m : stacked_.modules()) names.push_back(m.name);
  return names;
}

/// A config means experts by what they are called in memory: those that it does not select there stay as they are here
/// too.
PlanOptions CheckpointPlan::plan_options(PlanOptions plan) const {
  // Beside experts that are taken apart the output has other names, which reports show and patterns may mean.
  plan.called = [this](const std::string& module) {
    std::vector<std::string> names = {module};
    if (std::string written = stacked_.written_name(module); written != module) names.push_back(std::move(written));
    return names;
  };
  if (const ModulePatterns patterns(plan); !patterns.empty()) {
    for (const auto& tensor : source_.names()) {
      const std::string module = is_weight(tensor) ? module_of(tensor) : tensor;
      for (auto& name : plan.called(module)) plan.other_names.push_back(std::move(name));
      const auto experts = stacked_.modules_of(tensor);
      const std::string reason = experts.empty() ? "" : patterns.excludes(module, "");
      if (reason.empty()) continue;
      for (const auto& expert : experts) plan.keep.emplace(expert, reason);
    }
  }
  for (const auto& m : modules_.all()) {
    if (m.final && m.role != Role::transposed) plan.keep.emplace(m.name, m.why);
    if (plan.experts == ExpertForm::keep && !mixture_of(m.name).empty())
      plan.keep.emplace(m.name, "an expert, kept in high precision");
  }
  if (!plan.config.has_value()) return plan;
  auto filter = configs::module_filter(*plan.config);
  for (const auto& name : names_of_modules()) {
    const auto expert = expert_in_memory(name);
    if (!expert.has_value()) continue;
    const std::string reason = reason_against(*plan.config, filter, expert->name, kExpertType);
    if (!reason.empty()) plan.keep.emplace(name, reason + ", by the name " + expert->name);
  }
  return plan;
}

/// Entries of the lists that mean experts by those names are not idle.
void CheckpointPlan::forget_idle_names_of_experts() {
  const auto& config = *options_.plan.config;
  auto filter = configs::module_filter(config);
  for (const auto& name : names_of_modules()) {
    const auto expert = expert_in_memory(name);
    if (!expert.has_value()) continue;
    filter.selects(kExpertType, expert->name);
    filter.selects(kMixtureType, expert->mixture);
  }
  const auto idle = filter.unused_entries();
  std::erase_if(plan_.warnings, [&](const std::string& warning) {
    return warning.find(" matches no module of this model") != std::string::npos &&
           std::ranges::none_of(idle, [&](const auto& entry) {
             return warning.starts_with(entry.message.substr(0, entry.message.find(" matches no module")));
           });
  });
}

/// A config selects these too; the checkpoint does not show them.
std::vector<NodeInfo> CheckpointPlan::find_nodes() const {
  return options_.plan.config.has_value() ? attention_nodes(attention()) : std::vector<NodeInfo>{};
}

void CheckpointPlan::check_source(const PlannedModule& m) const {
  const auto& info = source_.info(source_tensor(m.info.name));
  if (!is_float(info.dtype))
    io::fail<io::Error>("{}: {}: expected dtype F32, BF16 or F16, found {}", source_.folder().string(), info.name,
                        io::name_of(info.dtype));
  for (const char* made : kScaleEndings)
    if (source_.contains(m.info.name + made))
      io::fail<io::Error>("{}: {}{}: a scale, in what should be a high precision checkpoint", source_.folder().string(),
                          m.info.name, made);
}

void CheckpointPlan::check_family() const {
  if (const std::string reason = modules_.names().refused(names_of_modules()); !reason.empty())
    io::fail<io::Error>("{}: {}: {}", source_.folder().string(), modules_.names().model_type(), reason);
  if (form_.needs_mxfp4() && stacked_.packed().empty())
    io::fail<io::Error>("{}: {}", source_.folder().string(), kNeedsMxfp4);
  if (plan_.modules.empty()) refuse_empty();
}

/// Selected modules that stay in high precision after all, and with them the rest of a stack that one of them is of.
void CheckpointPlan::leave(const std::vector<SkippedModule>& modules) {
  std::unordered_set<std::string_view> names;
  for (const auto& m : modules) names.insert(m.name);
  plan_.skipped.insert(plan_.skipped.end(), modules.begin(), modules.end());
  std::erase_if(plan_.modules, [&](const PlannedModule& m) { return names.contains(m.info.name); });
  stacked_.settle(plan_);
}

/// Modules that are no Linear, and those that the form's readers would misread.
void CheckpointPlan::leave_unwritable() {
  std::vector<WeightSpec> linears;
  for (const auto& m : plan_.modules)
    if (is_linear(m)) linears.push_back(spec_of(m));
  std::map<std::string, std::string> misread;
  for (const auto& [module, problem] : weight_problems(form_, linears))
    misread[module] = problem.through.empty() ? problem.reason : with_product(problem.through);
  std::vector<SkippedModule> left;
  std::set<std::string> checked;
  for (const auto& m : plan_.modules) {
    if (!is_linear(m)) {
      left.push_back({m.info.name, std::string(form_.name()) + " quantizes Linear only, this is " + m.info.type});
      continue;
    }
    check_source(m);
    if (checked.insert(m.scheme.describe()).second)
      if (const std::string problem = form_.scheme_problem(m.scheme); !problem.empty())
        io::fail<io::Error>("{} ({})", problem, m.info.name);
    if (const auto found = misread.find(m.info.name); found != misread.end())
      left.push_back({m.info.name, found->second});
  }
  leave(left);
  if (plan_.modules.empty())
    io::fail<io::Error>("{}: no Linear module is left to quantize{}", source_.folder().string(),
                        misread.empty() ? "" : "; " + misread.begin()->first + ": " + misread.begin()->second);
}

/// Experts of a family that not all readers take, or take one by one in fp8.
void CheckpointPlan::note_experts() {
  for (auto& notice : stacked_.notices()) plan_.warnings.push_back(std::move(notice));
  const ExpertFamily* family = expert_family(config_);
  if (family != nullptr && !family->unread.empty())
    plan_.warnings.push_back("for vLLM only: " + std::string(family->unread));
  if (family == nullptr || !family->vllm_only || !stacked_.mixtures().empty()) return;
  const bool single =
      std::ranges::any_of(plan_.modules, [](const auto& m) { return !mixture_of(m.info.name).empty(); });
  if (single) plan_.warnings.push_back("experts are in fp8 one by one: " + family->note());
}

/// What vLLM, which most checkpoints are for, would refuse of a form that it reads: the words of reader_check.h.
void CheckpointPlan::note_vllm() {
  constexpr auto kReader = CheckpointReader::vllm;
  if (!form_.is_read_by(kReader)) return;
  for (const auto& m : plan_.modules) {
    StoredWeight weight;
    weight.spec = spec_of(m);
    const auto& name = weight.spec.module;
    const std::string problem =
        form_.problem_of_reader(kReader, weight, place_on_load(kReader, name, expert_family(config_)));
    if (problem.empty()) continue;
    plan_.warnings.push_back(io::message("not for {}: {}: {}", release_of(kReader), io::printable(name), problem));
    return;
  }
}

void CheckpointPlan::refuse_empty() const {
  const auto& all = modules_.all();
  const auto transposed = std::ranges::find_if(all, [](const auto& m) { return m.role == Role::transposed; });
  if (transposed != all.end())
    io::fail<io::Error>(
        "{}: no Linear module is left to quantize: {} and others are stored transposed, [in, out] (Conv1D), for which "
        "no reader of fp8 checkpoints has a product",
        source_.folder().string(), transposed->name);
  io::fail<io::Error>("{}: no module is left to quantize ({}, {}, allowlist, blocklist)", source_.folder().string(),
                      io::option("include"), io::option("exclude"));
}

/// A tied head that is quantized becomes a tensor of its own, which is known to be read for one pair of names.
void CheckpointPlan::refuse_tied_heads() {
  for (const auto& m : plan_.modules) {
    const auto* head = modules_.find(m.info.name);
    if (head == nullptr || !head->tied) continue;
    if (!is_known_tie(*head))
      io::fail<io::Error>("{}: {}: is tied to {}; built is: an lm_head that is tied to model.embed_tokens",
                          source_.folder().string(), m.info.name, head->tensor);
    untied_ = true;
  }
}

/// "(--include quantizes it)" is said only of what it would put into the file in fp8.
void CheckpointPlan::drop_idle_hints() {
  if (plan_.modules.empty()) return;
  const Scheme& scheme = plan_.modules.front().scheme;
  const auto can_be = [&](const CheckpointModule* m) {
    if (m == nullptr || CheckpointModules::type_of(*m) != "Linear" || (m->tied && !is_known_tie(*m))) return false;
    const auto& measured = options_.plan.measurements;
    if (scheme.is_static() && (!measured.has_value() || measured->find(m->name) == nullptr)) return false;
    return form_.weight_problem({m->name, m->shape[0], m->shape[1], scheme}).empty();
  };
  const std::string hint = io::spelled(include_hint(), options_.plan.spelling);
  for (auto& s : plan_.skipped)
    if (s.reason.ends_with(hint) && !can_be(modules_.find(s.name))) s.reason.resize(s.reason.size() - hint.size());
}

/// Weights that look like those of a Linear and are none to a reader of this form.
void CheckpointPlan::list_transposed() {
  for (auto& s : plan_.skipped) {
    const auto* m = modules_.find(s.name);
    if (m != nullptr && CheckpointModules::type_of(*m) == kTransposed)
      s.reason = "stored transposed, [in, out] (Conv1D): readers of this form take Linear weights only";
  }
}

/// Of what engines run as one product all is quantized, or nothing.
void CheckpointPlan::leave_halved_groups() {
  std::vector<std::string> quantized, kept;
  for (const auto& m : plan_.modules) quantized.push_back(m.info.name);
  const std::unordered_set<std::string_view> planned(quantized.begin(), quantized.end());
  for (const auto& m : modules_.all())
    if (CheckpointModules::may_be_linear(m) && !planned.contains(m.name)) kept.push_back(m.name);
  std::vector<SkippedModule> left;
  for (const auto& [module, through] : halved_groups(modules_.names(), quantized, kept))
    left.push_back({module, with_product(through)});
  if (left.empty()) return;
  leave(left);
  if (plan_.modules.empty())
    io::fail<io::Error>("{}: no Linear module is left to quantize; {}: {}", source_.folder().string(),
                        plan_.skipped.back().name, plan_.skipped.back().reason);
}

/// A module that transformers splits on load only together with scales can't stay as it is.
void CheckpointPlan::refuse_unscaled_parts() const {
  if (!form_.is_read_by(CheckpointReader::transformers)) return;
  for (const auto& m : modules_.all()) {
    if (!modules_.names().parts_on_load(m.name).whole || plan_.find(m.name) != nullptr) continue;
    io::fail<io::Error>(
        "{}: {}: transformers splits it on load and asks every quantized file of this family for its scales: it can't "
        "stay in high precision{}",
        source_.folder().string(), m.name, m.why.empty() ? "" : " (" + m.why + ")");
  }
}

/// Nodes that the config puts into fp8: caches go into the file if all of them do, the others have no place in
/// any form.
void CheckpointPlan::place_nodes() {
  if (options_.plan.config.has_value()) forget_idle_names_of_experts();
  std::map<std::string, std::string> ways;
  for (const auto& n : find_nodes()) ways[n.name] = n.way;
  std::erase_if(plan_.skipped, [&](const SkippedModule& s) {  // what stays in high precision in memory too
    const auto node = ways.find(s.name);
    return node != ways.end() && (!node->second.empty() || s.reason.starts_with("not selected"));
  });
  std::vector<std::string> caches, others;
  for (const auto& n : plan_.nodes) (configs::info_of(n.scheme.kind).cache ? caches : others).push_back(n.info.name);
  const auto leave = [&](const std::vector<std::string>& nodes, const std::string& reason) {
    for (const auto& name : nodes) plan_.skipped.push_back({name, reason});
  };
  if (!others.empty()) {
    leave(others, "in fp8 where the QUANT_CONFIG is applied in memory; " + std::string(form_.name()) +
                      " has no place for its scales");
    plan_.warnings.push_back(
        io::message("{}: no form of checkpoint holds scales of attention: {} selected nodes stay in high precision "
                    "(the first is '{}')",
                    options_.plan.config->source, others.size(), others.front()));
  }
  const auto owners = attention();
  with_kv_ = options_.plan.kv_cache.value_or(!caches.empty() && caches.size() == 2 * owners.size());
  if (with_kv_ || caches.empty()) return;
  leave(caches,
        "only a part of the key-value caches is selected, and engines would take 1.0 for the scales of the others");
  plan_.warnings.push_back(io::message(
      "{}: selects {} of {} key-value caches, a checkpoint holds scales of all or none: they stay in high precision",
      options_.plan.config->source, caches.size(), 2 * owners.size()));
}

/// The measurement's fingerprint, if it has one, against the weights that are to be quantized.
void CheckpointPlan::check_model() const {
  const auto& measurements = options_.plan.measurements;
  if (!measurements.has_value() || !measurements->model.has_value()) return;
  measure::ModelFingerprint model;
  for (const auto& m : plan_.modules) {
    if (stacked_.slice_of(m.info.name) != nullptr) continue;  // a fingerprint is of a tensor
    model.weights.push_back(measure::fingerprint_of(m.info.name, source_, source_tensor(m.info.name)));
  }
  measure::require_same_model(*measurements->model, model, "measurements");
}

WeightSpec CheckpointPlan::spec_of(const PlannedModule& m) const {
  return {stacked_.written_name(m.info.name), m.info.shape[0], m.info.shape[1], m.scheme};
}

std::vector<std::string> CheckpointPlan::attention() const { return attention_modules(names_of_modules()); }

std::vector<std::string> CheckpointPlan::kept_linears() const {
  const auto mixtures = kept_mixtures();
  std::vector<std::string> names;
  for (const auto& s : plan_.skipped) {
    const auto* m = modules_.find(s.name);
    if (m != nullptr && CheckpointModules::may_be_linear(*m) && !mixtures.contains(mixture_of(s.name)))
      names.push_back(stacked_.written_name(s.name));
  }
  return names;
}

std::vector<std::string> CheckpointPlan::kept_experts() const {
  auto names = stacked_.kept();
  for (const auto& mixture : kept_mixtures()) names.push_back(stacked_.written_name(mixture));
  return names;
}

/// Of experts that the file holds one by one: the mixtures of which none is in fp8.
std::set<std::string> CheckpointPlan::kept_mixtures() const {
  std::set<std::string> mixtures;
  for (const auto& s : plan_.skipped) mixtures.insert(mixture_of(s.name));
  for (const auto& m : plan_.modules) mixtures.erase(mixture_of(m.info.name));
  for (const auto& stack : stacked_.mixtures()) mixtures.erase(stack.name);
  mixtures.erase("");
  return mixtures;
}

}  // namespace fp8::quant
