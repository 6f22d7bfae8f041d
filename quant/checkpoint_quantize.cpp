// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint_quantize.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "fp8/configs/option_names.h"
#include "fp8/quant/checkpoint_modules.h"
#include "fp8/quant/checkpoint_stream.h"
#include "fp8/quant/expert_names.h"
#include "fp8/quant/float_dtype.h"
#include "fp8/quant/formats/assumed_form.h"
#include "fp8/quant/formats/carry_through.h"
#include "fp8/quant/formats/sidecar.h"
#include "fp8/quant/nonfinite.h"
#include "fp8/quant/plan_kv.h"
#include "fp8/quant/quantize_units.h"
#include "fp8/quant/stacked_experts.h"
#include "fp8/runtime/io/checksum.h"
#include "fp8/runtime/io/error.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTransposed = "Conv1D";
constexpr const char* kScaleEndings[] = {".weight_scale", ".weight_scale_inv", ".input_scale", ".scale_weight", ".scale_input"};

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.size() - 7); }
bool is_weight(const std::string& tensor) { return tensor.size() > 7 && tensor.compare(tensor.size() - 7, 7, ".weight") == 0; }

/// One run: the plan, the source, the units.
class Job {
 public:
  Job(const fs::path& model, const CheckpointOptions& options)
      : options_(options), source_identity_(identity_of(model)), carried_(carried_identity_of(model)), config_(read_model_config(model)), source_(model),
        modules_(source_, config_, choice()), form_(form_of(options.format)), nonfinite_(checked()),
        stacked_(source_, config_, options.plan.experts, without_nonfinite(options.plan).keep), plan_(make_plan(find_modules(), find_nodes(), plan_options())) {
    check_plan();
    keep_whole_groups();
    place_nodes();
    check_model();
    make_spec();
    make_units();
  }

  CheckpointReport report() const {
    CheckpointReport r;
    for (const auto& m : plan_.modules) r.quantized.emplace_back(m.info.name, m.scheme.describe());
    r.skipped = plan_.skipped;
    r.warnings = plan_.warnings;
    if (const std::string notice = modules_.notice(); !notice.empty()) r.warnings.insert(r.warnings.begin(), notice);
    r.guesses = modules_.guesses();
    r.source_bytes = source_.total_bytes();
    r.units = units_.size();
    r.kv_caches = spec_.kv.size();
    for (const auto& [tensor, found] : nonfinite_) r.warnings.push_back(tensor + ": copied with " + found.text(static_cast<std::uint64_t>(source_.info(tensor).numel())));
    for (const auto& unit : units_) {
      for (const auto& e : unit.entries) r.weights_bytes += bytes_of(e);
    }
    return r;
  }

  void write(const fs::path& out, CheckpointReport& report) {
    StreamOptions stream;
    stream.overwrite = options_.overwrite;
    stream.resume = options_.resume;
    stream.identity = identity();
    stream.source = source_.folder();
    stream.shard_bytes = options_.shard_bytes;
    stream.rank = options_.rank;
    stream.world_size = options_.world_size;
    stream.progress = options_.progress;
    stream.stop = options_.stop;
    stream.carried = carried_;
    for (const auto& [tensor, found] : nonfinite_) stream.nonfinite.insert(tensor);
    const auto finish = [&](OutputFolder& folder) { finish_folder(folder, run_mark(units_, stream), report); };
    const auto result = options_.join ? join_checkpoint(out, units_, stream, finish) : write_checkpoint(out, units_, stream, finish);
    report.units_kept = result.kept;
    for (auto& warning : lost_.warnings(plan_.scale_method, "weights")) report.warnings.push_back(std::move(warning));
    report.finished_before = result.finished_before;
    report.warnings.insert(report.warnings.end(), result.warnings.begin(), result.warnings.end());
  }

 private:
  ModuleChoice choice() const {
    ModuleChoice modules = options_.modules;
    const auto& plan = options_.plan;
    const auto weights = plan.weights.value_or(plan.activations == ActivationScaling::static_tensor ? WeightGranularity::tensor : WeightGranularity::channel);
    modules.scale_rows = weights == WeightGranularity::block ? plan.block.rows : weights == WeightGranularity::channel && !plan.config.has_value() ? 1 : 0;
    return modules;
  }

  /// The source is in high precision; what of it is NaN or Inf, if that is allowed (else whoever reads it refuses it).
  std::map<std::string, NonFinite> checked() const {
    require_no_codes(source_);
    return options_.allow_nonfinite ? find_nonfinite(source_, recipes::Dialect::ocp, {}, options_.stop) : std::map<std::string, NonFinite>();
  }

  /// Keeps what can't be quantized: a weight with NaN or Inf, and what engines run as one product with it.
  PlanOptions without_nonfinite(PlanOptions o) const {
    if (nonfinite_.empty()) return o;
    std::map<std::string, std::string> groups;
    for (const auto& [tensor, found] : nonfinite_) {
      const std::string module = is_weight(tensor) ? module_of(tensor) : tensor, reason = "holds " + found.text(static_cast<std::uint64_t>(source_.info(tensor).numel()));
      o.keep[module] = reason;
      for (const auto& m : modules_.all()) {
        if (m.tied && m.tensor == tensor) o.keep[m.name] = reason;
      }
      if (const std::string group = fuse_group_of(module); !group.empty()) groups.emplace(group, module);
    }
    for (const auto& tensor : source_.names()) {
      if (!is_weight(tensor)) continue;
      const auto group = groups.find(fuse_group_of(module_of(tensor)));
      if (group != groups.end()) o.keep.emplace(module_of(tensor), "readers run it as one product with " + group->second + ", which holds NaN or Inf");
    }
    return o;
  }

  /// The tensor that holds a module's weight: its own, the embedding's for a tied head, or one that stacks an expert's.
  const std::string& source_tensor(const std::string& module) const {
    const auto* slice = stacked_.slice_of(module);
    return slice != nullptr ? slice->tensor : modules_.find(module)->tensor;
  }

  WeightSlice source_of(const std::string& module) const {
    const auto* slice = stacked_.slice_of(module);
    return slice != nullptr ? *slice : whole_weight(source_.info(source_tensor(module)));
  }

  std::vector<ModuleInfo> find_modules() const {
    std::vector<ModuleInfo> modules;
    for (const auto& m : modules_.all()) {
      if (!stacked_.modules_of(m.tensor).empty()) continue;
      const bool expert = options_.plan.config.has_value() && expert_in_memory(m.name).has_value();  // the class that a config's lists know
      modules.push_back({m.name, expert ? kExpertType : CheckpointModules::type_of(m), m.shape, m.why});
    }
    for (auto& m : stacked_.modules()) {
      if (options_.plan.config.has_value() && expert_in_memory(m.name).has_value()) m.type = kExpertType;
      modules.push_back(std::move(m));
    }
    return modules;
  }

  std::vector<std::string> names_of_modules() const {
    std::vector<std::string> names;
    for (const auto& tensor : source_.names()) {
      if (is_weight(tensor)) names.push_back(module_of(tensor));
    }
    for (const auto& m : stacked_.modules()) names.push_back(m.name);
    return names;
  }

  /// A config means experts by what they are called in memory: those that it does not select there stay as they are here too.
  PlanOptions plan_options() const {
    PlanOptions plan = without_nonfinite(options_.plan);
    for (const auto& m : modules_.all()) {
      if (m.final && m.role != Role::transposed) plan.keep.emplace(m.name, m.why);
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
  void forget_idle_names_of_experts() {
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
      return warning.find(" matches no module of this model") != std::string::npos && std::none_of(idle.begin(), idle.end(), [&](const auto& entry) {
        return warning.rfind(entry.message.substr(0, entry.message.find(" matches no module")), 0) == 0;
      });
    });
  }

  /// A config selects these too; the checkpoint does not show them.
  std::vector<NodeInfo> find_nodes() const {
    return options_.plan.config.has_value() ? attention_nodes(attention_modules(names_of_modules())) : std::vector<NodeInfo>{};
  }

  std::string form_name() const { return name_of(options_.format); }

  void check_source(const PlannedModule& m) const {
    const auto& info = source_.info(source_tensor(m.info.name));
    if (!is_float(info.dtype)) {
      throw io::Error(source_.folder().string() + ": " + info.name + ": expected dtype F32, BF16 or F16, found " + io::name_of(info.dtype));
    }
    for (const char* made : kScaleEndings) {
      if (source_.contains(m.info.name + made)) {
        throw io::Error(source_.folder().string() + ": " + m.info.name + made + ": a scale, in what should be a high precision checkpoint");
      }
    }
  }

  /// What the config puts into fp8 besides weights: caches go into the file if all of them do, the rest has no place in any form.
  void place_nodes() {
    if (options_.plan.config.has_value()) forget_idle_names_of_experts();
    std::map<std::string, std::string> ways;
    for (const auto& n : find_nodes()) ways[n.name] = n.way;
    std::erase_if(plan_.skipped, [&](const SkippedModule& s) {  // what stays in high precision in memory too
      const auto node = ways.find(s.name);
      return node != ways.end() && (!node->second.empty() || s.reason.rfind("not selected", 0) == 0);
    });
    std::vector<std::string> caches, others;
    for (const auto& n : plan_.nodes) (n.scheme.kind == configs::ModuleKind::kv_cache ? caches : others).push_back(n.info.name);
    const auto leave = [&](const std::vector<std::string>& nodes, const std::string& reason) {
      for (const auto& name : nodes) plan_.skipped.push_back({name, reason});
    };
    if (!others.empty()) {
      leave(others, "in fp8 where the QUANT_CONFIG is applied in memory; " + form_name() + " has no place for its scales");
      plan_.warnings.push_back(options_.plan.config->source + ": no form of checkpoint holds scales of attention: " + std::to_string(others.size()) +
                               " selected nodes stay in high precision (the first is '" + others.front() + "')");
    }
    const auto attention = attention_modules(names_of_modules());
    with_kv_ = options_.plan.kv_cache.value_or(!caches.empty() && caches.size() == 2 * attention.size());
    if (with_kv_ || caches.empty()) return;
    leave(caches, "only a part of the key-value caches is selected, and engines would take 1.0 for the scales of the others");
    plan_.warnings.push_back(options_.plan.config->source + ": selects " + std::to_string(caches.size()) + " of " + std::to_string(2 * attention.size()) +
                             " key-value caches, a checkpoint holds scales of all or none: they stay in high precision");
  }

  static bool is_linear(const PlannedModule& m) { return (m.info.type == "Linear" || m.info.type == kExpertType) && m.info.shape.size() == 2; }

  WeightSpec spec_of(const PlannedModule& m) const { return {stacked_.written_name(m.info.name), m.info.shape[0], m.info.shape[1], m.scheme}; }

  /// What the form's readers would misread; and what they run as one product with that.
  std::map<std::string, std::string> misread() const {
    std::vector<WeightSpec> weights;
    for (const auto& m : plan_.modules) {
      if (is_linear(m)) weights.push_back(spec_of(m));
    }
    std::map<std::string, std::string> reasons;
    for (const auto& [module, problem] : weight_problems(form_, weights)) {
      reasons[module] = problem.through.empty() ? problem.reason : "readers run it as one product with " + problem.through + ", which is not converted";
    }
    return reasons;
  }

  void check_plan() {
    if (const std::string reason = modules_.names().refused(); !reason.empty()) throw io::Error(source_.folder().string() + ": " + modules_.names().model_type() + ": " + reason);
    if (plan_.modules.empty()) refuse_empty();
    const auto misread_modules = misread();
    std::vector<PlannedModule> linears;
    std::set<std::string> checked;
    for (auto& m : plan_.modules) {
      if (!is_linear(m)) {
        plan_.skipped.push_back({m.info.name, form_name() + " quantizes Linear only, this is " + m.info.type});
        continue;
      }
      check_source(m);
      if (checked.insert(m.scheme.describe()).second) {
        if (const std::string problem = form_.scheme_problem(m.scheme); !problem.empty()) throw io::Error(problem + " (" + m.info.name + ")");
      }
      if (const auto found = misread_modules.find(m.info.name); found != misread_modules.end()) {
        plan_.skipped.push_back({m.info.name, found->second});
        continue;
      }
      linears.push_back(m);
    }
    plan_.modules = std::move(linears);
    stacked_.settle(plan_);
    if (plan_.modules.empty()) {
      throw io::Error(source_.folder().string() + ": no Linear module is left to quantize" +
                      (misread_modules.empty() ? "" : "; " + misread_modules.begin()->first + ": " + misread_modules.begin()->second));
    }
    refuse_tied_heads();
    for (auto& notice : stacked_.notices()) plan_.warnings.push_back(std::move(notice));
    list_transposed();
  }

  [[noreturn]] void refuse_empty() const {
    const auto& all = modules_.all();
    const auto transposed = std::find_if(all.begin(), all.end(), [](const auto& m) { return m.role == Role::transposed; });
    if (transposed != all.end())
      throw io::Error(source_.folder().string() + ": no Linear module is left to quantize: " + transposed->name + " and others are stored transposed, [in, out] (Conv1D), " +
                      "for which no reader of fp8 checkpoints has a product");
    throw io::Error(source_.folder().string() + ": no module is left to quantize (" + configs::option_name("'include', 'exclude'", "--include, --exclude") +
                    ", allowlist, blocklist)");
  }

  /// A tied head that is quantized becomes a tensor of its own, which is known to be read for one pair of names.
  void refuse_tied_heads() {
    for (const auto& m : plan_.modules) {
      const auto* head = modules_.find(m.info.name);
      if (head == nullptr || !head->tied) continue;
      if (m.info.name != "lm_head" || head->tensor != "model.embed_tokens.weight")
        throw io::Error(source_.folder().string() + ": " + m.info.name + ": is tied to " + head->tensor + "; built is: an lm_head that is tied to model.embed_tokens");
      untied_ = true;
    }
  }

  /// Of what engines run as one product all is quantized, or nothing.
  void keep_whole_groups() {
    std::vector<std::string> quantized, kept;
    for (const auto& m : plan_.modules) quantized.push_back(m.info.name);
    for (const auto& m : modules_.all()) {
      if (CheckpointModules::may_be_linear(m) && plan_.find(m.name) == nullptr) kept.push_back(m.name);
    }
    const auto halved = halved_groups(modules_.names(), quantized, kept);
    if (halved.empty()) return;
    for (const auto& [module, through] : halved) plan_.skipped.push_back({module, "readers run it as one product with " + through + ", which is not converted"});
    std::erase_if(plan_.modules, [&](const PlannedModule& m) { return halved.count(m.info.name) != 0; });
    stacked_.settle(plan_);
    if (plan_.modules.empty()) throw io::Error(source_.folder().string() + ": no Linear module is left to quantize; " + plan_.skipped.back().name + ": " + plan_.skipped.back().reason);
  }

  /// Weights that look like those of a Linear and are none to a reader of this form.
  void list_transposed() {
    for (auto& s : plan_.skipped) {
      const auto* m = modules_.find(s.name);
      if (m != nullptr && CheckpointModules::type_of(*m) == kTransposed)
        s.reason = "stored transposed, [in, out] (Conv1D): readers of this form take Linear weights only";
    }
  }

  /// The measurement's fingerprint, if it has one, against the weights that are to be quantized.
  void check_model() const {
    const auto& measurements = options_.plan.measurements;
    if (!measurements.has_value() || !measurements->model.has_value()) return;
    measure::ModelFingerprint model;
    for (const auto& m : plan_.modules) {
      if (stacked_.slice_of(m.info.name) != nullptr) continue;  // a fingerprint is of a tensor
      model.weights.push_back(measure::fingerprint_of(m.info.name, source_, source_tensor(m.info.name)));
    }
    measure::require_same_model(*measurements->model, model, "measurements");
  }

  void make_spec() {
    spec_.scheme = plan_.modules.front().scheme;
    for (const auto& m : plan_.modules) spec_.quantized.push_back(stacked_.written_name(m.info.name));
    spec_.kept_experts = stacked_.kept();
    for (const auto& s : plan_.skipped) {  // readers need each Linear that stays by name
      const auto* m = modules_.find(s.name);
      if (m != nullptr && CheckpointModules::may_be_linear(*m)) spec_.kept_linears.push_back(stacked_.written_name(s.name));
    }
    spec_.names = modules_.names();
    spec_.ignore = options_.ignore;
    spec_.scale_method = plan_.scale_method;
    spec_.qdq = options_.plan.config.has_value() && options_.plan.config->use_qdq;
    spec_.kv = options_.kv;
    if (with_kv_) spec_.kv = plan_kv_cache(attention_modules(names_of_modules()), options_.plan, plan_.warnings);
    for (const auto& kv : spec_.kv) {
      if (const std::string problem = form_.kv_problem(kv); !problem.empty()) throw io::Error(form_name() + ": " + kv.attention + ": " + problem);
    }
  }

  /// In the source's order: what belongs together there stays together.
  void make_units() {
    std::map<std::string, std::size_t> by_weight;
    std::map<std::string, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < plan_.modules.size(); ++i) {
      const auto& m = plan_.modules[i];
      by_weight[m.info.name + ".weight"] = i;
      if (!m.fuse_group.empty()) groups[m.fuse_group].push_back(i);
    }
    const auto add_module = [&](std::size_t i) {
      const auto& m = plan_.modules[i];
      std::vector<std::size_t> members = m.fuse_group.empty() ? std::vector<std::size_t>{i} : groups.at(m.fuse_group);
      if (members.front() != i) return;  // the first of a group stands for all
      std::vector<units::Weight> weights;
      for (const std::size_t member : members) {
        const auto& module = plan_.modules[member];
        weights.push_back({module, source_of(module.info.name), spec_of(module)});
      }
      units_.push_back(units::quantize_unit(shared_, std::move(weights)));
    };
    for (const auto& tensor : source_.names()) {
      const auto experts = stacked_.modules_of(tensor);
      const auto found = by_weight.find(tensor);
      for (const auto& expert : experts) add_module(by_weight.at(expert + ".weight"));
      if (!experts.empty()) continue;
      if (found == by_weight.end())
        units_.push_back(copy_unit(source_, tensor, stacked_.written_name(tensor)));
      else
        add_module(found->second);
    }
    if (untied_) add_module(by_weight.at("lm_head.weight"));  // after the embedding, whose tensor it reads
    for (const auto& kv : spec_.kv) {
      units_.push_back({kv.attention, form_.kv_entries(kv, spec_), 0, [this, &kv](UnitContext& context) {
                          form_.write_kv(context, kv, spec_);
                          context.advance(0);
                        }, {}});
    }
    for (auto& m : plan_.modules) m.info.name = stacked_.written_name(m.info.name);  // from here on: as they stand in the output
    for (auto& s : plan_.skipped) s.name = stacked_.written_name(s.name);
  }

  /// What decides the bytes.
  io::Json identity() const {
    io::Checksum modules;
    const auto add = [&](const void* data, std::size_t size) { modules.update(data, size); };
    for (const auto& m : plan_.modules) {
      const std::string text = m.info.name + "\n" + m.scheme.describe() + "\n" + m.fuse_group + "\n";
      add(text.data(), text.size());
      add(&m.scheme.input_scale_inv, sizeof(float));
    }
    for (const auto& kv : spec_.kv) {
      add(kv.attention.c_str(), kv.attention.size() + 1);
      add(kv.k.data(), kv.k.size() * sizeof(float));
      add(kv.v.data(), kv.v.size() * sizeof(float));
    }
    const io::Json options = {{"format", form_name()},          {"scheme", spec_.scheme.describe()},           {"convention", name_of(spec_.scheme.convention)},
                              {"hp_dtype", recipes::name_of(spec_.scheme.hp)}, {"scale_method", plan_.scale_method}, {"use_qdq", spec_.qdq},
                              {"measurements", plan_.measurements}, {"fuse_scales", options_.plan.fuse_scales},   {"modules and their scales", io::checksum_text(modules.value())}};
    io::Json id = {{"command", "quantize"}, {"option", options}, {"source", source_identity_}};
    if (!nonfinite_.empty()) id["nonfinite"] = nonfinite_json(nonfinite_);
    return id;
  }

  void finish_folder(OutputFolder& folder, const std::string& mark, CheckpointReport& report) const {
    const io::Json config = form_.config(spec_);
    io::Json edits = {{"quantization_config", config}};
    if ((modules_.tied() || untied_) && plan_.find("lm_head") != nullptr) edits["tie_word_embeddings"] = false;
    folder.write_config(source_.folder() / "config.json", edits);
    for (const auto& [name, json] : form_.extra_files(config)) folder.write_json(name, json);
    io::Json sidecar = make_sidecar(plan_, spec_.scheme);
    if (!nonfinite_.empty()) sidecar["nonfinite"] = nonfinite_json(nonfinite_);
    sidecar["run"] = mark;
    folder.write_json(kSidecarName, sidecar);
    for (auto& warning : folder.carry_through(source_.folder())) report.warnings.push_back(std::move(warning));
  }

  const CheckpointOptions& options_;
  io::Json source_identity_, carried_;  // as the source's files were before they were read
  io::Json config_;
  io::Checkpoint source_;
  CheckpointModules modules_;
  const CheckpointForm& form_;
  std::map<std::string, NonFinite> nonfinite_;  // by tensor; allowed
  bool with_kv_ = false;    // scales of key-value caches are made
  bool untied_ = false;     // lm_head is quantized from the embedding's tensor
  StackedExperts stacked_;
  Plan plan_;
  ConfigSpec spec_;
  UnderflowReport lost_;
  units::Shared shared_{source_, form_, spec_, lost_};
  std::vector<Unit> units_;
};

}  // namespace

CheckpointReport quantize_checkpoint(const fs::path& model, const fs::path& out, const CheckpointOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options);
  CheckpointReport report = job.report();
  if (!options.dry_run) job.write(out, report);
  return report;
}

}  // namespace fp8::quant
