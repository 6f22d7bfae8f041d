// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/quantize_plan.h"

#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/plan/rules.h"

namespace fp8::quant {
namespace {

constexpr const char* kScaleEndings[] = {".weight_scale", ".weight_scale_inv", ".input_scale", ".scale_weight",
                                         ".scale_input"};

using Reasons = std::map<std::string, std::string>;

/// What every step may ask. The steps take it and what earlier ones made, and return their own part.
struct Given {
  const CheckpointOptions& options;
  const CheckpointForm& form;
  const SourceFolder& source;
  const std::map<std::string, NonFinite>& nonfinite;
};

/// The modules that are to be in fp8, the others, and the stacks of experts that both leave.
struct Selected {
  std::vector<PlannedModule> modules;
  std::vector<SkippedModule> skipped;
  StackedExperts stacked;
};

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

ModuleChoice choice_of(const CheckpointOptions& options) {
  ModuleChoice modules = options.modules;
  const auto& plan = options.plan;
  const auto weights = plan.weights.value_or(
      plan.activations == ActivationScaling::static_tensor ? Granularity::tensor : Granularity::channel);
  modules.scale_rows = weights == Granularity::block                                 ? plan.block.rows
                       : weights == Granularity::channel && !plan.config.has_value() ? 1
                                                                                     : 0;
  return modules;
}

/// Keeps what can't be quantized: a weight with NaN or Inf, and what engines run as one product with it.
PlanOptions without_nonfinite(const Given& given) {
  PlanOptions o = given.options.plan;
  const io::Checkpoint& source = given.source.checkpoint;
  Reasons groups;
  for (const auto& [tensor, found] : given.nonfinite) {
    const std::string module = is_weight(tensor) ? module_of(tensor) : tensor,
                      reason = "holds " + found.text(static_cast<std::uint64_t>(source.info(tensor).numel()));
    o.keep[module] = reason;
    for (const auto& m : given.source.modules.all())
      if (m.tied && m.tensor == tensor) o.keep[m.name] = reason;
    if (const std::string group = fuse_group_of(module); !group.empty()) groups.emplace(group, module);
  }
  if (groups.empty()) return o;
  for (const auto& tensor : source.names()) {
    if (!is_weight(tensor)) continue;
    const auto group = groups.find(fuse_group_of(module_of(tensor)));
    if (group != groups.end())
      o.keep.emplace(module_of(tensor),
                     "readers run it as one product with " + group->second + ", which holds NaN or Inf");
  }
  return o;
}

std::vector<ModuleInfo> modules_of(const Given& given, const StackedExperts& stacked) {
  const auto is_expert = [&](const std::string& name) {  // the class that a config's lists know
    return given.options.plan.config.has_value() && expert_in_memory(name).has_value();
  };
  std::vector<ModuleInfo> modules;
  for (const auto& m : given.source.modules.all())
    if (stacked.modules_of(m.tensor).empty())
      modules.push_back({m.name, is_expert(m.name) ? kExpertType : CheckpointModules::type_of(m), m.shape, m.why});
  for (auto& m : stacked.modules()) {
    if (is_expert(m.name)) m.type = kExpertType;
    modules.push_back(std::move(m));
  }
  return modules;
}

std::vector<std::string> names_of(const SourceFolder& source, const StackedExperts& stacked) {
  std::vector<std::string> names;
  for (const auto& tensor : source.checkpoint.names())
    if (is_weight(tensor)) names.push_back(module_of(tensor));
  for (const auto& m : stacked.modules()) names.push_back(m.name);
  return names;
}

/// A config selects these too; the checkpoint does not show them.
std::vector<NodeInfo> nodes_of(const Given& given, const StackedExperts& stacked) {
  if (!given.options.plan.config.has_value()) return {};
  return attention_nodes(attention_modules(names_of(given.source, stacked)));
}

/// A config means experts by what they are called in memory: those that it does not select there stay as they are here
/// too.
PlanOptions plan_options(const Given& given, const StackedExperts& stacked, PlanOptions plan) {
  // Beside experts that are taken apart the output has other names, which reports show and patterns may mean.
  plan.called = [&stacked](const std::string& module) {
    std::vector<std::string> names = {module};
    if (std::string written = stacked.written_name(module); written != module) names.push_back(std::move(written));
    return names;
  };
  if (const ModulePatterns patterns(plan); !patterns.empty()) {
    for (const auto& tensor : given.source.checkpoint.names()) {
      const std::string module = is_weight(tensor) ? module_of(tensor) : tensor;
      for (auto& name : plan.called(module)) plan.other_names.push_back(std::move(name));
      const auto experts = stacked.modules_of(tensor);
      const std::string reason = experts.empty() ? "" : patterns.excludes(module, "");
      if (reason.empty()) continue;
      for (const auto& expert : experts) plan.keep.emplace(expert, reason);
    }
  }
  for (const auto& m : given.source.modules.all()) {
    if (m.final && m.role != Role::transposed) plan.keep.emplace(m.name, m.why);
    if (plan.experts == ExpertForm::keep && !mixture_of(m.name).empty())
      plan.keep.emplace(m.name, "an expert, kept in high precision");
  }
  if (!plan.config.has_value()) return plan;
  auto filter = configs::module_filter(*plan.config);
  for (const auto& name : names_of(given.source, stacked)) {
    const auto expert = expert_in_memory(name);
    if (!expert.has_value()) continue;
    const std::string reason = reason_against(*plan.config, filter, expert->name, kExpertType);
    if (!reason.empty()) plan.keep.emplace(name, reason + ", by the name " + expert->name);
  }
  return plan;
}

void check_family(const Given& given, const StackedExperts& stacked, const Plan& made) {
  const std::string folder = given.source.folder();
  const ModelNames& family = given.source.modules.names();
  if (const std::string reason = family.refused(names_of(given.source, stacked)); !reason.empty())
    io::fail_at(folder, "{}: {}", family.model_type(), reason);
  if (given.form.needs_mxfp4() && stacked.packed().empty()) io::fail_at(folder, "{}", kNeedsMxfp4);
  if (!made.modules.empty()) return;
  for (const auto& m : given.source.modules.all())
    if (m.role == Role::transposed)
      io::fail_at(folder,
                  "no Linear module is left to quantize: {} and others are stored transposed, [in, out] (Conv1D), for "
                  "which no reader of fp8 checkpoints has a product",
                  m.name);
  io::fail_at(folder, "no module is left to quantize ({}, {}, allowlist, blocklist)", io::option("include"),
              io::option("exclude"));
}

/// What is left without these modules, and without the rest of a stack that one of them is of.
Selected without(Selected all, const std::vector<SkippedModule>& left) {
  std::unordered_set<std::string_view> names;
  for (const auto& m : left) names.insert(m.name);
  all.skipped.insert(all.skipped.end(), left.begin(), left.end());
  std::erase_if(all.modules, [&](const PlannedModule& m) { return names.contains(m.info.name); });
  all.stacked.settle(all.modules, all.skipped);
  return all;
}

/// The tensor that holds a module's weight: its own, the embedding's for a tied head, or one that stacks an expert's.
const std::string& tensor_of(const SourceFolder& source, const StackedExperts& stacked, const std::string& module) {
  const auto* slice = stacked.slice_of(module);
  return slice != nullptr ? slice->tensor : source.modules.find(module)->tensor;
}

void check_source(const SourceFolder& source, const StackedExperts& stacked, const std::string& module) {
  const auto& info = source.checkpoint.info(tensor_of(source, stacked, module));
  if (!is_float(info.dtype))
    io::fail_at(source.folder(), "{}: expected dtype F32, BF16 or F16, found {}", info.name, io::name_of(info.dtype));
  for (const char* made : kScaleEndings)
    if (source.checkpoint.contains(module + made))
      io::fail_at(source.folder(), "{}{}: a scale, in what should be a high precision checkpoint", module, made);
}

/// Less what is no Linear, and what the form's readers would misread.
Selected writable_of(const Given& given, Selected all) {
  std::vector<WeightSpec> linears;
  for (const auto& m : all.modules)
    if (is_linear(m)) linears.push_back(all.stacked.written(m));
  Reasons misread;
  for (const auto& [module, problem] : weight_problems(given.form, linears))
    misread[module] = problem.through.empty() ? problem.reason : with_product(problem.through);
  std::vector<SkippedModule> left;
  std::set<std::string> checked;
  for (const auto& m : all.modules) {
    if (!is_linear(m)) {
      left.push_back({m.info.name, std::string(given.form.name()) + " quantizes Linear only, this is " + m.info.type});
      continue;
    }
    check_source(given.source, all.stacked, m.info.name);
    if (checked.insert(m.scheme.describe()).second)
      if (const std::string problem = given.form.scheme_problem(m.scheme); !problem.empty())
        io::fail<io::Error>("{} ({})", problem, m.info.name);
    if (const auto found = misread.find(m.info.name); found != misread.end())
      left.push_back({m.info.name, found->second});
  }
  Selected writable = without(std::move(all), left);
  if (writable.modules.empty())
    io::fail_at(given.source.folder(), "no Linear module is left to quantize{}",
                misread.empty() ? "" : "; " + misread.begin()->first + ": " + misread.begin()->second);
  return writable;
}

/// A tied head that is quantized becomes a tensor of its own, which is known to be read for one pair of names. True if
/// one is.
bool unties_head(const SourceFolder& source, const std::vector<PlannedModule>& modules) {
  bool untied = false;
  for (const auto& m : modules) {
    const auto* head = source.modules.find(m.info.name);
    if (head == nullptr || !head->tied) continue;
    if (!is_known_tie(*head))
      io::fail_at(source.folder(), "{}: is tied to {}; built is: an lm_head that is tied to model.embed_tokens",
                  m.info.name, head->tensor);
    untied = true;
  }
  return untied;
}

/// On experts of a family that not all readers take, or take one by one in fp8, and on what vLLM, which most
/// checkpoints are for, would refuse of a form that it reads: the words of reader_check.h.
std::vector<std::string> reader_notes(const Given& given, const Selected& all) {
  std::vector<std::string> notes = all.stacked.notices();
  const ExpertFamily* family = expert_family(given.source.config);
  if (family != nullptr && !family->unread.empty()) notes.push_back("for vLLM only: " + std::string(family->unread));
  const bool single = std::ranges::any_of(all.modules, [](const auto& m) { return !mixture_of(m.info.name).empty(); });
  if (family != nullptr && family->vllm_only && all.stacked.mixtures().empty() && single)
    notes.push_back("experts are in fp8 one by one: " + family->note());
  constexpr auto kReader = CheckpointReader::vllm;
  if (!given.form.is_read_by(kReader)) return notes;
  for (const auto& m : all.modules) {
    StoredWeight weight;
    weight.spec = all.stacked.written(m);
    const auto& name = weight.spec.module;
    const std::string problem = given.form.problem_of_reader(kReader, weight, place_on_load(kReader, name, family));
    if (problem.empty()) continue;
    notes.push_back(io::message("not for {}: {}: {}", release_of(kReader), io::printable(name), problem));
    break;
  }
  return notes;
}

/// Of what engines run as one product all is quantized, or nothing.
Selected whole_of(const Given& given, Selected all) {
  std::vector<std::string> quantized;
  for (const auto& m : all.modules) quantized.push_back(m.info.name);
  std::vector<SkippedModule> left;
  for (const auto& [module, through] : given.source.modules.halved_by(quantized))
    left.push_back({module, with_product(through)});
  Selected whole = without(std::move(all), left);
  if (whole.modules.empty())
    io::fail_at(given.source.folder(), "no Linear module is left to quantize; {}: {}", whole.skipped.back().name,
                whole.skipped.back().reason);
  return whole;
}

/// A module that transformers splits on load only together with scales can't stay as it is.
void refuse_unscaled_parts(const Given& given, const std::vector<PlannedModule>& modules) {
  if (!given.form.is_read_by(CheckpointReader::transformers)) return;
  for (const auto& m : given.source.modules.all()) {
    if (!given.source.modules.names().parts_on_load(m.name).whole) continue;
    if (std::ranges::any_of(modules, [&](const PlannedModule& p) { return p.info.name == m.name; })) continue;
    io::fail_at(
        given.source.folder(),
        "{}: transformers splits it on load and asks every quantized file of this family for its scales: it can't "
        "stay in high precision{}",
        m.name, m.why.empty() ? "" : " (" + m.why + ")");
  }
}

/// Nodes that the config puts into fp8: caches go into the file if all of them do, others have no place in any form.
struct Nodes {
  Reasons ways;                     ///< of all that may be
  std::vector<SkippedModule> left;  ///< in fp8 in memory alone
  std::vector<std::string> warnings;
  bool with_kv = false;

  /// True for what stays in high precision in memory too: nothing is said of it.
  bool hides(const SkippedModule& s) const {
    const auto node = ways.find(s.name);
    return node != ways.end() && (!node->second.empty() || s.reason.starts_with("not selected"));
  }
};

Nodes placed_nodes(const Given& given, const StackedExperts& stacked, const std::vector<PlannedNode>& planned) {
  const PlanOptions& options = given.options.plan;
  Nodes nodes;
  for (const auto& n : nodes_of(given, stacked)) nodes.ways[n.name] = n.way;
  std::vector<std::string> caches, others;
  for (const auto& n : planned) (configs::info_of(n.scheme.kind).cache ? caches : others).push_back(n.info.name);
  const auto leave = [&](const std::vector<std::string>& names, const std::string& reason) {
    for (const auto& name : names) nodes.left.push_back({name, reason});
  };
  if (!others.empty()) {
    leave(others, "in fp8 where the QUANT_CONFIG is applied in memory; " + std::string(given.form.name()) +
                      " has no place for its scales");
    nodes.warnings.push_back(
        io::message("{}: no form of checkpoint holds scales of attention: {} selected nodes stay in high precision "
                    "(the first is '{}')",
                    options.config->source, others.size(), others.front()));
  }
  const auto owners = attention_modules(names_of(given.source, stacked)).size();
  nodes.with_kv = options.kv_cache.value_or(!caches.empty() && caches.size() == 2 * owners);
  if (nodes.with_kv || caches.empty()) return nodes;
  leave(caches,
        "only a part of the key-value caches is selected, and engines would take 1.0 for the scales of the others");
  nodes.warnings.push_back(io::message(
      "{}: selects {} of {} key-value caches, a checkpoint holds scales of all or none: they stay in high precision",
      options.config->source, caches.size(), 2 * owners));
  return nodes;
}

/// The warnings of make_plan() less those on entries of a config's lists that mean experts by their names in memory:
/// these are not idle.
std::vector<std::string> true_warnings(const Given& given, const StackedExperts& stacked,
                                       std::vector<std::string> warnings) {
  if (!given.options.plan.config.has_value()) return warnings;
  auto filter = configs::module_filter(*given.options.plan.config);
  for (const auto& name : names_of(given.source, stacked)) {
    const auto expert = expert_in_memory(name);
    if (!expert.has_value()) continue;
    filter.selects(kExpertType, expert->name);
    filter.selects(kMixtureType, expert->mixture);
  }
  const auto idle = filter.unused_entries();
  std::erase_if(warnings, [&](const std::string& warning) {
    return warning.find(" matches no module of this model") != std::string::npos &&
           std::ranges::none_of(idle, [&](const auto& entry) {
             return warning.starts_with(entry.message.substr(0, entry.message.find(" matches no module")));
           });
  });
  return warnings;
}

/// What stays, with reasons that hold for a file: weights that look like those of a Linear and are none to a reader;
/// "(--include quantizes it)" only of what it would put into the file in fp8.
std::vector<SkippedModule> skipped_of(const Given& given, const Selected& all, const Nodes& nodes) {
  const Scheme& scheme = all.modules.front().scheme;
  const auto& measured = given.options.plan.measurements;
  const auto can_be = [&](const CheckpointModule* m) {
    if (m == nullptr || CheckpointModules::type_of(*m) != "Linear" || (m->tied && !is_known_tie(*m))) return false;
    if (scheme.is_static() && (!measured.has_value() || measured->find(m->name) == nullptr)) return false;
    return given.form.weight_problem({m->name, m->shape[0], m->shape[1], scheme}).empty();
  };
  const std::string hint = io::spelled(include_hint(), given.options.plan.spelling);
  std::vector<SkippedModule> skipped;
  for (SkippedModule s : all.skipped) {
    if (nodes.hides(s)) continue;
    const auto* m = given.source.modules.find(s.name);
    if (m != nullptr && CheckpointModules::type_of(*m) == "Conv1D")
      s.reason = "stored transposed, [in, out] (Conv1D): readers of this form take Linear weights only";
    if (s.reason.ends_with(hint) && !can_be(m)) s.reason.resize(s.reason.size() - hint.size());
    skipped.push_back(std::move(s));
  }
  skipped.insert(skipped.end(), nodes.left.begin(), nodes.left.end());
  return skipped;
}

/// The measurement's fingerprint, if it has one, against the weights that are to be quantized.
void check_model(const Given& given, const Selected& all) {
  const auto& measurements = given.options.plan.measurements;
  if (!measurements.has_value() || !measurements->model.has_value()) return;
  const io::Checkpoint& source = given.source.checkpoint;
  measure::ModelFingerprint model;
  for (const auto& m : all.modules) {
    if (all.stacked.slice_of(m.info.name) != nullptr) continue;  // a fingerprint is of a tensor
    model.weights.push_back(
        measure::fingerprint_of(m.info.name, source, tensor_of(given.source, all.stacked, m.info.name)));
  }
  measure::require_same_model(*measurements->model, model, "measurements");
}

/// Of experts that the file holds one by one: the mixtures of which none is in fp8.
std::set<std::string> kept_mixtures(const Plan& plan, const StackedExperts& stacked) {
  std::set<std::string> mixtures;
  for (const auto& s : plan.skipped) mixtures.insert(mixture_of(s.name));
  for (const auto& m : plan.modules) mixtures.erase(mixture_of(m.info.name));
  for (const auto& stack : stacked.mixtures()) mixtures.erase(stack.name);
  mixtures.erase("");
  return mixtures;
}

}  // namespace

CheckpointPlan::CheckpointPlan(const std::filesystem::path& model, const CheckpointOptions& options)
    : form(form_named(options.form)),
      source(model, form, choice_of(options)),
      nonfinite(options.allow_nonfinite ? find_nonfinite(source.checkpoint, recipes::Dialect::ocp, {}, options.stop)
                                        : std::map<std::string, NonFinite>()) {
  const Given given{options, form, source, nonfinite};
  const PlanOptions asked = without_nonfinite(given);
  const StackedExperts stacks(source.checkpoint, source.config, options.plan.experts, asked.keep);
  Plan made = make_plan(modules_of(given, stacks), nodes_of(given, stacks), plan_options(given, stacks, asked));
  check_family(given, stacks, made);
  Selected writable = writable_of(given, {std::move(made.modules), std::move(made.skipped), stacks});
  untied = unties_head(source, writable.modules);
  const auto notes = reader_notes(given, writable);
  const Selected whole = whole_of(given, std::move(writable));
  refuse_unscaled_parts(given, whole.modules);
  const Nodes nodes = placed_nodes(given, whole.stacked, made.nodes);
  with_kv = nodes.with_kv;
  stacked = whole.stacked;
  plan = {whole.modules,
          made.nodes,
          skipped_of(given, whole, nodes),
          true_warnings(given, stacked, made.warnings),
          made.scale_method,
          made.measurements};
  for (const auto& lines : {source.incomplete, notes, nodes.warnings})
    plan.warnings.insert(plan.warnings.end(), lines.begin(), lines.end());
  plan.spell(options.plan.spelling);
  check_model(given, whole);
}

WeightSlice CheckpointPlan::source_of(const std::string& module) const {
  const auto* slice = stacked.slice_of(module);
  return slice != nullptr ? *slice : whole_weight(source.checkpoint.info(tensor_of(source, stacked, module)));
}

std::vector<std::string> CheckpointPlan::attention() const { return attention_modules(names_of(source, stacked)); }

std::vector<std::string> CheckpointPlan::kept_linears() const {
  const auto mixtures = kept_mixtures(plan, stacked);
  std::vector<std::string> names;
  for (const auto& s : plan.skipped) {
    const auto* m = source.modules.find(s.name);
    if (m != nullptr && CheckpointModules::may_be_linear(*m) && !mixtures.contains(mixture_of(s.name)))
      names.push_back(stacked.written_name(s.name));
  }
  return names;
}

std::vector<std::string> CheckpointPlan::kept_experts() const {
  auto names = stacked.kept();
  for (const auto& mixture : kept_mixtures(plan, stacked)) names.push_back(stacked.written_name(mixture));
  return names;
}

}  // namespace fp8::quant
