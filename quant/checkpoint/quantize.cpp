// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/quantize.h"

#include <algorithm>
#include <map>

#include "fp8/quant/checkpoint/quantize_plan.h"
#include "fp8/quant/checkpoint/quantize_units.h"
#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/carry_through.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

/// The keys of a config.json that say that the head is no embedding: its own, and those of parts that say otherwise.
io::Json untied_config(const io::Json& config) {
  constexpr char kTie[] = "tie_word_embeddings";
  io::Json edits = {{kTie, false}};
  for (const auto& [key, part] : config.items()) {
    if (!part.is_object() || part.value(kTie, io::Json(false)) != io::Json(true)) continue;
    edits[key] = part;
    edits[key][kTie] = false;
  }
  return edits;
}

/// One run: the plan, the source, the units.
class Job {
 public:
  Job(const fs::path& model, const CheckpointOptions& options)
      : options_(options),
        source_identity_(identity_of(model)),
        carried_(carried_identity_of(model)),
        planned_(model, options),
        form_(planned_.form()),
        plan_(planned_.plan()) {
    make_spec();
    make_units();
  }

  CheckpointReport report() const {
    CheckpointReport r;
    for (const auto& m : plan_.modules) r.quantized.emplace_back(m.info.name, m.scheme.describe());
    r.skipped = plan_.skipped;
    for (auto& s : r.skipped) {
      const auto* m = planned_.modules().find(s.name);
      if (m != nullptr && !m->tied) {
        const auto& weight = source_.info(m->tensor);
        s.bytes = static_cast<std::uint64_t>(weight.numel() * io::size_of(weight.dtype));
      }
    }
    r.warnings = plan_.warnings;
    if (const std::string notice = planned_.modules().notice(); !notice.empty())
      r.warnings.insert(r.warnings.begin(), notice);
    for (const auto& notice : notices_beside(source_)) r.warnings.push_back(source_.folder().string() + ": " + notice);
    r.guesses = planned_.modules().guesses();
    r.source_bytes = source_.total_bytes();
    r.units = units_.size();
    r.kv_caches = spec_.kv.size();
    for (const auto& [tensor, found] : planned_.nonfinite())
      r.warnings.push_back(tensor + ": copied with " +
                           found.text(static_cast<std::uint64_t>(source_.info(tensor).numel())));
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
    stream.shares = options_.shares;
    stream.progress = options_.progress;
    stream.stop = options_.stop;
    stream.carried = carried_;
    for (const auto& [tensor, found] : planned_.nonfinite()) stream.nonfinite.insert(tensor);
    const auto finish = [&](OutputFolder& folder) { finish_folder(folder, run_mark(units_, stream), report); };
    const auto result = make_checkpoint(out, units_, stream, options_.join, finish);
    report.units_kept = result.kept;
    report.shares = result.shares;
    for (auto& warning : lost_.warnings(plan_.scale_method, "weights")) report.warnings.push_back(std::move(warning));
    report.finished_before = result.finished_before;
    report.warnings.insert(report.warnings.end(), result.warnings.begin(), result.warnings.end());
  }

 private:
  void make_spec() {
    spec_.scheme = plan_.modules.front().scheme;
    for (const auto& m : plan_.modules) spec_.quantized.push_back(stacked_.written_name(m.info.name));
    spec_.kept_experts = planned_.kept_experts();
    spec_.packed_experts = stacked_.packed();
    spec_.kept_linears = planned_.kept_linears();
    spec_.names = planned_.modules().names();
    spec_.ignore = options_.ignore;
    spec_.scale_method = plan_.scale_method;
    spec_.qdq = options_.plan.config.has_value() && options_.plan.config->use_qdq;
    spec_.kv = options_.kv;
    if (planned_.with_kv()) spec_.kv = plan_kv_cache(planned_.attention(), options_.plan, plan_.warnings);
    for (const auto& kv : spec_.kv) {
      if (const std::string problem = form_.kv_problem(kv); !problem.empty())
        throw io::Error(std::string(form_.name()) + ": " + kv.attention + ": " + problem);
    }
  }

  /// A scale of key-value caches in a source in high precision: an engine would use it for the cache of the output. A
  /// family without a row may have a parameter of such a name.
  bool is_leftover_scale(const std::string& tensor) const {
    return planned_.modules().names().known() && form_parts::is_cache_scale(tensor) &&
           source_.info(tensor).numel() == 1;
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
        weights.push_back({module, planned_.source_of(module.info.name), planned_.spec_of(module)});
      }
      units_.push_back(units::quantize_unit(shared_, std::move(weights)));
    };
    std::vector<std::string> left_over;
    for (const auto& tensor : source_.names()) {
      if (is_leftover_scale(tensor)) {
        left_over.push_back(tensor);
        continue;
      }
      const auto experts = stacked_.modules_of(tensor);
      const auto found = by_weight.find(tensor);
      for (const auto& expert : experts) add_module(by_weight.at(expert + ".weight"));
      if (!experts.empty()) continue;
      if (found == by_weight.end())
        units_.push_back(copy_unit(source_, tensor, stacked_.written_name(tensor)));
      else
        add_module(found->second);
    }
    if (!left_over.empty())
      plan_.warnings.push_back(
          std::to_string(left_over.size()) + (left_over.size() == 1 ? " scale" : " scales") +
          " of key-value caches left out, no config says what they are of: " + io::joined_first(left_over, 1));
    if (planned_.untied())
      add_module(by_weight.at(kTiedHead + std::string(".weight")));  // after the embedding, whose tensor it reads
    for (const auto& kv : spec_.kv) {
      units_.push_back({kv.attention,
                        form_.kv_entries(kv, spec_),
                        0,
                        [this, &kv](UnitContext& context) {
                          form_.write_kv(context, kv, spec_);
                          context.advance(0);
                        },
                        {}});
    }
    for (auto& m : plan_.modules)
      m.info.name = stacked_.written_name(m.info.name);  // from here on: as they stand in the output
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
    const io::Json options = {{"format", form_.name()},
                              {"scheme", spec_.scheme.describe()},
                              {"convention", name_of(spec_.scheme.convention)},
                              {"hp_dtype", recipes::name_of(spec_.scheme.hp)},
                              {"scale_method", plan_.scale_method},
                              {"use_qdq", spec_.qdq},
                              {"measurements", plan_.measurements},
                              {"fuse_scales", options_.plan.fuse_scales},
                              {"modules and their scales", io::checksum_text(modules.value())}};
    io::Json id = {{"command", "quantize"}, {"option", options}, {"source", source_identity_}};
    if (!planned_.nonfinite().empty()) id["nonfinite"] = nonfinite_json(planned_.nonfinite());
    return id;
  }

  /// Readers that tie would put the embedding in its place, or its codes in the embedding's.
  bool has_fp8_head() const {
    const auto& all = planned_.modules();
    return planned_.untied() || std::any_of(plan_.modules.begin(), plan_.modules.end(), [&](const PlannedModule& m) {
             const auto* module = all.find(m.info.name);
             return module != nullptr && module->role == Role::head;
           });
  }

  void finish_folder(OutputFolder& folder, const std::string& mark, CheckpointReport& report) const {
    const io::Json config = form_.config(spec_);
    io::Json edits = {{"quantization_config", config}};
    if (has_fp8_head()) edits.update(untied_config(planned_.config()));
    folder.write_config(source_.folder() / io::kConfigFile, edits);
    for (const auto& [name, json] : form_.extra_files(config)) folder.write_json(name, json);
    io::Json sidecar = make_sidecar(plan_, spec_.scheme);
    if (!planned_.nonfinite().empty()) sidecar["nonfinite"] = nonfinite_json(planned_.nonfinite());
    sidecar["run"] = mark;
    folder.write_json(kSidecarName, sidecar);
    for (auto& warning : folder.carry_through(source_.folder())) report.warnings.push_back(std::move(warning));
  }

  const CheckpointOptions& options_;
  io::Json source_identity_, carried_;  // as the source's files were before they were read
  CheckpointPlan planned_;
  const CheckpointForm& form_;
  const io::Checkpoint& source_ = planned_.source();
  const StackedExperts& stacked_ = planned_.stacked();
  Plan plan_;  // once the units are made: by the names of the output
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
