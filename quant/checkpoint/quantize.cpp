// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/quantize.h"

#include "fp8/quant/checkpoint/quantize_plan.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/io/base/checksum.h"

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

PlannedCaches caches_of(const CheckpointPlan& planned, const CheckpointOptions& options) {
  PlannedCaches caches{options.kv, {}};
  if (planned.with_kv) caches.scales = plan_kv_cache(planned.attention(), options.plan, caches.notes);
  for (const auto& kv : caches.scales)
    if (const std::string problem = planned.form.kv_problem(kv); !problem.empty())
      io::fail<io::Error>("{}: {}: {}", planned.form.name(), kv.attention, problem);
  return caches;
}

ConfigSpec config_of(const CheckpointPlan& planned, const CheckpointOptions& options, std::vector<KvScales> kv) {
  const Plan& plan = planned.plan;
  ConfigSpec spec;
  const auto& weights_only = options.plan.weights_only;
  const auto usual =
      std::ranges::find_if(plan.modules, [&](const PlannedModule& m) { return !weights_only.contains(m.info.name); });
  spec.scheme = (usual == plan.modules.end() ? plan.modules.front() : *usual).scheme;
  for (const auto& m : plan.modules) {
    spec.quantized.push_back(planned.stacked.written_name(m.info.name));
    if (usual != plan.modules.end() && weights_only.contains(m.info.name))
      spec.weights_only.push_back(spec.quantized.back());
  }
  spec.kept_experts = planned.kept_experts();
  spec.packed_experts = planned.stacked.packed();
  spec.kept_linears = planned.kept_linears();
  spec.names = planned.source.modules.names();
  if (!spec.weights_only.empty() && !planned.form.holds_weights_only_beside(spec.names, spec.scheme))
    io::fail<io::Error>("{}: {} can't have activations in high precision where the others have scales",
                        planned.form.name(), spec.weights_only.front());
  spec.ignore = options.ignore;
  spec.scale_method = plan.scale_method;
  spec.qdq = options.plan.config.has_value() && options.plan.config->use_qdq;
  spec.kv = std::move(kv);
  return spec;
}

/// Scales of key-value caches, which an engine would use for the cache of the output; a family without a row may have a
/// parameter of such a name.
std::vector<std::string> left_over_scales(const SourceFolder& source) {
  std::vector<std::string> scales;
  if (!source.modules.names().known()) return scales;
  for (const auto& tensor : source.checkpoint.names())
    if (form_parts::is_cache_scale(tensor) && source.checkpoint.info(tensor).numel() == 1) scales.push_back(tensor);
  return scales;
}

/// The modules that are left in high precision, in the names of the output.
std::vector<SkippedModule> skipped_modules(const CheckpointPlan& planned) {
  auto skipped = planned.plan.skipped;
  for (auto& s : skipped) {
    s.name = planned.stacked.written_name(s.name);
    const auto* m = planned.source.modules.find(s.name);
    if (m == nullptr || m->tied) continue;
    const auto& weight = planned.source.checkpoint.info(m->tensor);
    s.bytes = static_cast<std::uint64_t>(weight.numel() * io::size_of(weight.dtype));
  }
  return skipped;
}

/// Finds the codes of the checkpoint's weights: experts are called otherwise in the model that was run, and hold gate
/// above up there.
class RoundedPlaces {
 public:
  RoundedPlaces(const RoundedCodes& codes, const io::Checkpoint& source) : codes_(codes) {
    for (const auto& m : codes.modules()) {
      unused_.insert(m.module);
      if (!codes.contains(m.module)) continue;
      const auto pieces = quant::pieces_of(m.module + ".weight", source);
      const std::int64_t rows = codes.rows(m.module) / static_cast<std::int64_t>(pieces.size());
      if (pieces.size() == 1) whole_.insert(m.module);
      for (std::size_t i = 0; i < pieces.size(); ++i)
        places_[{pieces[i].tensor, pieces[i].index.value_or(-1)}] = {m.module, static_cast<std::int64_t>(i) * rows};
    }
  }

  RoundedPlace of(const std::string& module, const WeightSlice& slice) {
    if (codes_.contains(module)) {
      unused_.erase(module);
      return {module};
    }
    const auto found = places_.find({slice.tensor, slice.expert});
    if (found == places_.end()) return {};
    unused_.erase(found->second.module);
    RoundedPlace place = found->second;
    // Of a stack that holds both, up is what does not begin where the expert does.
    const bool half = slice.expert >= 0 && whole_.contains(place.module) && codes_.rows(place.module) == 2 * slice.rows;
    if (half && slice.first != slice.expert * 2 * slice.rows * slice.cols) place.first = slice.rows;
    return place;
  }

  /// Codes that no weight took would be lost without a word.
  void require_all_used(const io::Checkpoint& source) const {
    for (const auto& name : unused_)
      if (codes_.contains(name))
        io::fail_at(name, "was rounded, and the checkpoint in {} quantizes no module of this name",
                    source.folder().string());
  }

 private:
  const RoundedCodes& codes_;
  std::map<std::pair<std::string, std::int64_t>, RoundedPlace> places_;  // by tensor and expert
  std::set<std::string> whole_, unused_;                                 // whole_: modules of one piece
};

/// On modules of the checkpoint that are no part of the model that was run, such as towers.
std::vector<std::string> unseen_notes(const RoundedCodes& rounded, const std::vector<PlannedWeight>& weights) {
  std::set<std::string> kept;
  for (const auto& m : rounded.modules())
    if (!m.kept.empty()) kept.insert(m.module);
  std::vector<std::string> unseen;
  for (const auto& w : weights) {
    const bool expert = w.values.expert >= 0 || !mixture_of(w.measured->info.name).empty();
    if (w.rounded == nullptr && !expert && !kept.contains(w.measured->info.name)) unseen.push_back(w.to.module);
  }
  if (rounded.modules().empty() || unseen.empty()) return {};
  return {io::message("{} modules are rounded to nearest, the model that ran has none of them: {}", unseen.size(),
                      io::joined_first(unseen, 1))};
}

std::vector<PlannedWeight> weights_of(const CheckpointPlan& planned, const RoundedCodes* rounded) {
  std::optional<RoundedPlaces> places;
  if (rounded != nullptr) places.emplace(*rounded, planned.source.checkpoint);
  std::vector<PlannedWeight> weights;
  for (const auto& m : planned.plan.modules) {
    PlannedWeight& w = weights.emplace_back();
    const auto* module = planned.source.modules.find(m.info.name);
    w.values = planned.source_of(m.info.name);
    w.to = planned.stacked.written(m);
    w.change = Change::requantized;
    w.fuse_group = m.fuse_group;
    w.measured = &m;
    w.tied = module != nullptr && module->tied;
    if (places.has_value()) w.codes = places->of(m.info.name, w.values);
    if (!w.codes.module.empty()) w.rounded = rounded;
  }
  if (places.has_value()) places->require_all_used(planned.source.checkpoint);
  return weights;
}

std::vector<std::string> notes_of(const CheckpointPlan& planned, const FolderPlan& plan, const PlannedCaches& caches,
                                  const std::vector<std::string>& left_over, const CheckpointOptions& options) {
  std::vector<std::string> notes = planned.plan.warnings;
  notes.insert(notes.end(), caches.notes.begin(), caches.notes.end());
  if (options.rounded != nullptr)
    for (auto& note : unseen_notes(*options.rounded, plan.weights)) notes.push_back(std::move(note));
  if (!left_over.empty())
    notes.push_back(io::message("{}{} of key-value caches left out, no config says what they are of: {}",
                                left_over.size(), left_over.size() == 1 ? " scale" : " scales",
                                io::joined_first(left_over, 1)));
  return notes;
}

FolderTexts texts_of(const CheckpointPlan& planned, const FolderPlan& plan, const CheckpointOptions& options) {
  const SourceFolder& source = planned.source;
  const ConfigSpec& config = plan.config;
  io::Json more = io::Json::object();
  for (const auto& name : config.weights_only) more["weights_only"].push_back(name);
  FolderTexts texts;
  CardFacts& card = texts.card.emplace(card_of(source, plan, "quantized"));
  card.costs = options.costs;
  const auto row = [&](const char* name, std::string text) { card.more.emplace_back(name, std::move(text)); };
  if (!planned.plan.measurements.empty()) row("scales of activations", "measured on calibration data");
  if (config.scheme.convention == Convention::inc) row("scale method", config.scale_method);
  if (!config.weights_only.empty())
    row("modules with activations in high precision", std::to_string(config.weights_only.size()));
  if (!config.kv.empty()) row("key-value cache", "scales for fp8 in " + std::to_string(config.kv.size()) + " layers");
  if (options.rounded != nullptr) {
    const io::Json& rounding = more[kRoundingKey] = options.rounded->json(&source.checkpoint);
    if (const auto summary = RoundingSummary::of(rounding); summary.has_value())
      row("rounding", rounding.value("method", std::string()) + ", output SQNR " + summary->text());
  }
  texts.sidecar = sidecar_of(plan, planned.plan.measurements, {}, more);
  // Readers that tie would put the embedding in the head's place, or its codes in the embedding's.
  if (std::ranges::any_of(planned.plan.modules, [&](const PlannedModule& m) {
        const auto* module = source.modules.find(m.info.name);
        return module != nullptr && module->role == Role::head;
      }))
    texts.edits = untied_config(source.config);
  return texts;
}

/// All that decides the bytes.
io::Json identity_of(const FolderPlan& plan, const CheckpointPlan& planned, const CheckpointOptions& o) {
  io::Checksum modules;
  const auto add = [&](const void* data, std::size_t size) { modules.update(data, size); };
  for (const auto& w : plan.weights) {
    const std::string text = w.to.module + "\n" + w.to.scheme.describe() + "\n" + w.fuse_group + "\n";
    add(text.data(), text.size());
    add(&w.to.scheme.input_scale_inv, sizeof(float));
  }
  for (const auto& kv : plan.config.kv) {
    add(kv.attention.c_str(), kv.attention.size() + 1);
    add(kv.k.data(), kv.k.size() * sizeof(float));
    add(kv.v.data(), kv.v.size() * sizeof(float));
    add(kv.q.data(), kv.q.size() * sizeof(float));
  }
  const Scheme& scheme = plan.config.scheme;
  const io::Json options = {{"format", plan.form->name()},
                            {"scheme", scheme.describe()},
                            {"convention", name_of(scheme.convention)},
                            {"hp_dtype", recipes::name_of(scheme.hp)},
                            {"scale_method", plan.config.scale_method},
                            {"use_qdq", plan.config.qdq},
                            {"measurements", planned.plan.measurements},
                            {"fuse_scales", o.plan.fuse_scales},
                            {"modules and their scales", io::checksum_text(modules.value())}};
  io::Json id = {{"command", "quantize"}, {"option", options}, {"source", nullptr}};
  if (o.rounded != nullptr) id["rounding"] = o.rounded->identity();
  if (!plan.nonfinite.empty()) id["nonfinite"] = nonfinite_json(plan.nonfinite);
  return id;
}

/// All but what is known after writing.
CheckpointReport report_of(const SourceFolder& source, const FolderPlan& plan, io::Spelling spelling) {
  CheckpointReport r;
  for (const auto& w : plan.weights) {
    r.quantized.emplace_back(w.to.module, w.to.scheme.describe());
    r.sources.push_back({w.measured->info.name, w.values.tensor, w.values.expert});
  }
  r.skipped = plan.skipped;
  if (const std::string notice = source.modules.notice(); !notice.empty())
    r.warnings.push_back(io::spelled(notice, spelling));
  r.warnings.insert(r.warnings.end(), plan.notes.begin(), plan.notes.end());
  for (const auto& notice : notices_beside(source.checkpoint)) r.warnings.push_back(source.folder() + ": " + notice);
  for (auto& note : nonfinite_notes(source, plan)) r.warnings.push_back(std::move(note));
  r.guesses = source.modules.guesses();
  for (auto& [name, reason] : r.guesses) reason = io::spelled(reason, spelling);
  r.kv_caches = plan.config.kv.size();
  return r;
}

StreamOptions stream_of(const CheckpointOptions& options) {
  StreamOptions stream = options;
  stream.spelling = options.plan.spelling;
  return stream;
}

}  // namespace

FolderPlan plan_quantization(const CheckpointPlan& planned, const CheckpointOptions& options) {
  const SourceFolder& source = planned.source;
  FolderPlan plan;
  const PlannedCaches caches = caches_of(planned, options);
  plan.form = &planned.form;
  plan.weights = weights_of(planned, options.rounded.get());
  plan.skipped = skipped_modules(planned);
  plan.config = config_of(planned, options, caches.scales);
  const auto left_over = left_over_scales(source);
  plan.pieces = pieces_of(source.checkpoint, plan.weights, {left_over.begin(), left_over.end()}, planned.stacked);
  plan.nonfinite = planned.nonfinite;
  plan.notes = notes_of(planned, plan, caches, left_over, options);
  plan.texts = texts_of(planned, plan, options);
  plan.identity = identity_of(plan, planned, options);
  return plan;
}

bool is_quantized(const fs::path& model, const fs::path& out, const CheckpointOptions& options) {
  const Job noted(model, stream_of(options));
  const CheckpointPlan planned(model, options);
  const FolderPlan plan = plan_quantization(planned, options);
  const Pipeline pipeline(noted, planned.source, plan);
  return stands(out, pipeline.units, pipeline.stream);
}

CheckpointReport quantize_checkpoint(const fs::path& model, const fs::path& out, const CheckpointOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  const Job noted(model, stream_of(options));
  const CheckpointPlan planned(model, options);
  const FolderPlan plan = plan_quantization(planned, options);
  Pipeline pipeline(noted, planned.source, plan);
  CheckpointReport report = report_of(planned.source, plan, options.plan.spelling);
  pipeline.run(out, options.dry_run, options.join, report, report.warnings);
  return report;
}

}  // namespace fp8::quant
