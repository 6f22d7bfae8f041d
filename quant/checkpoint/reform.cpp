// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform.h"

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

recipes::FloatType type_of_config(const io::Json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto it = config.find(key);
    if (it == config.end() || !it->is_string()) continue;
    if (*it == "float32") return recipes::FloatType::F32;
    if (*it == "float16") return recipes::FloatType::F16;
  }
  return recipes::FloatType::BF16;
}

const fs::path& existing_folder(const fs::path& model) {
  require_model_folder(model);
  return model;
}

const char* word_of(recipes::FloatType type) {
  return type == recipes::FloatType::F32 ? "float32" : type == recipes::FloatType::F16 ? "float16" : "bfloat16";
}

/// fp8.json: what the source's says of the model, and the scheme that is written now.
io::Json sidecar_of(const ConvertSource& source, const FolderPlan& plan) {
  if (plan.form == nullptr) return make_note();
  Plan said;
  said.scale_method = plan.config.scale_method;
  const io::Json& old = source.sidecar;
  if (old.is_object() && old.contains("measurements") && old["measurements"].is_string())
    said.measurements = old["measurements"].get<std::string>();
  if (old.is_object() && old.contains("skipped") && old["skipped"].is_object())
    for (const auto& [name, reason] : old["skipped"].items())
      if (reason.is_string()) said.skipped.push_back({name, reason.get<std::string>()});
  for (const auto& w : plan.weights)
    if (!w.reason.empty()) said.skipped.push_back({w.to.module, w.reason});
  return make_sidecar(said, plan.config.scheme);
}

CardFacts card_of(const ConvertSource& source, const FolderPlan& plan) {
  const bool decoded = plan.form == nullptr;
  CardFacts card{model_name(source.checkpoint.folder()), decoded ? "" : plan.form->name(),
                 decoded ? kernels::name_of(plan.type) : plan.config.scheme.describe(),
                 "converted from " + source.form_name()};
  card.modules = plan.weights.size();
  for (const auto& w : plan.weights)
    if (!w.reason.empty()) card.kept.push_back({w.to.module, w.reason});
  const auto exact = std::ranges::count_if(plan.weights, [](const auto& w) { return w.exact; });
  if (exact == std::ssize(plan.weights))
    card.costs = {"Nothing: every weight has the value that it has in the source."};
  else
    card.costs = {
        io::message("{} of {} weights have the values of the source, the others are rounded anew. Not evaluated.",
                    exact, plan.weights.size())};
  return card;
}

FolderTexts texts_of(const ConvertSource& source, const FolderPlan& plan) {
  FolderTexts texts;
  texts.card = card_of(source, plan);
  texts.sidecar = sidecar_of(source, plan);
  texts.sidecar["converted"] = {{"from", source.form_name()},
                                {"exact", std::ranges::all_of(plan.weights, [](const auto& w) { return w.exact; })}};
  const bool same = std::ranges::all_of(
      plan.weights, [](const auto& w) { return w.change == Change::unchanged || w.change == Change::spread; });
  if (same && source.sidecar.is_object() && source.sidecar.contains(kRoundingKey))
    texts.sidecar[kRoundingKey] = source.sidecar[kRoundingKey];
  if (!plan.nonfinite.empty()) texts.sidecar["nonfinite"] = nonfinite_json(plan.nonfinite);
  if (plan.form != nullptr || plan.type == source.type) return texts;
  for (const char* key : {"dtype", "torch_dtype"})
    if (source.config.contains(key)) texts.edits[key] = word_of(plan.type);
  return texts;
}

/// What --rounding gained is in the codes, and new ones are the nearest.
void note_lost_rounding(const ConvertSource& source, FolderPlan& plan) {
  if (!source.sidecar.is_object() || !source.sidecar.contains(kRoundingKey)) return;
  const auto anew = std::ranges::count_if(
      plan.weights, [](const PlannedWeight& w) { return w.change == Change::requantized || !w.exact; });
  if (anew > 0)
    plan.notes.push_back(
        io::message("{} of {} weights get new codes, the nearest: what the source's rounding against inputs gained is "
                    "lost for them",
                    anew, plan.weights.size()));
}

/// Tensors that hold NaN or Inf. Throws for weights whose change would make other values of them.
std::map<std::string, NonFinite> allowed_nonfinite(const io::Checkpoint& source, const FolderPlan& plan,
                                                   const std::function<bool()>& stop) {
  std::set<std::string> codes;
  for (const auto& w : plan.weights) codes.insert(w.from.weight);
  const auto dialect = plan.weights.empty() ? recipes::Dialect::ocp : plan.weights.front().from.spec.scheme.dialect;
  auto found = find_nonfinite(source, dialect, codes, stop);
  for (const auto& w : plan.weights) {
    if (!found.contains(w.from.weight)) continue;
    const auto fail = [&](const std::string& what) {
      io::fail<io::Error>("{}: {}: {}", source.folder().string(), w.from.weight, what);
    };
    const auto max = [](const Scheme& s) { return kernels::fp8_max(s.format, s.dialect); };
    if (w.change == Change::requantized)
      fail("holds NaN or Inf, of which no new scales can be made; without " + io::option("weights") +
           " its codes stay as they are");
    if (w.change != Change::decoded && max(w.from.spec.scheme) < max(w.to.scheme))
      fail("holds NaN or Inf of dialect gaudi2, whose codes are numbers in another; expected finite weights");
    if (w.change == Change::decoded && max(w.from.spec.scheme) == 240)
      fail("holds NaN or Inf of dialect gaudi2, which is not decoded; expected finite weights");
  }
  return found;
}

/// All but what is known after writing.
ConvertReport report_of(const ConvertSource& source, const FolderPlan& plan) {
  ConvertReport report;
  report.from =
      source.form_name() + (source.high_precision() ? "" : ": " + source.stored.weights.front().spec.scheme.describe());
  report.to = plan.form == nullptr ? kernels::name_of(plan.type)
                                   : std::string(plan.form->name()) + ": " + plan.config.scheme.describe();
  for (const auto& w : plan.weights) report.modules.push_back({w.to.module, w.change, w.exact, w.reason, std::nullopt});
  report.notes = plan.notes;
  for (const auto& [tensor, found] : plan.nonfinite) {
    const auto values = static_cast<std::uint64_t>(source.checkpoint.info(tensor).numel());
    report.notes.push_back(tensor + ": copied with " + found.text(values));
  }
  for (auto& notice : notices_beside(source.checkpoint)) report.notes.push_back(std::move(notice));
  report.kv = plan.config.kv.size();
  report.source_bytes = source.checkpoint.total_bytes();
  return report;
}

/// All that decides the bytes.
io::Json identity_of(const FolderPlan& plan, const std::string& to, const std::string& assume) {
  io::Json id = {
      {"command", "convert"},  {"version", FP8_VERSION}, {"to", to},
      {"cast_all", plan.cast}, {"qdq", plan.config.qdq}, {"rescale", {plan.rescaling.times, plan.rescaling.over}}};
  if (!assume.empty()) id["assume"] = assume;
  if (!plan.nonfinite.empty()) id["nonfinite"] = nonfinite_json(plan.nonfinite);
  return id;
}

}  // namespace

ConvertSource::ConvertSource(const fs::path& model, const std::string& assume) : checkpoint(existing_folder(model)) {
  config = io::read_python_json(io::source_file(model, io::kConfigFile));
  if (!config.is_object())
    io::fail<io::Error>("{}: expected an object, found {}", (model / io::kConfigFile).string(), config.type_name());
  require_promised_shapes(checkpoint, config);
  if (fs::exists(model / kSidecarName)) sidecar = io::read_json(io::source_file(model, kSidecarName));
  if (!assume.empty()) {
    auto assumed = read_assumed(checkpoint, form_named(assume));
    quantization = std::move(assumed.config);
    stored = std::move(assumed.stored);
  } else {
    quantization = read_quantization_config(checkpoint);
    stored = read_stored(checkpoint);
  }
  require_complete(checkpoint, config, CheckpointModules(checkpoint, config));
  for (auto& w : stored.weights) {
    Scheme& scheme = w.spec.scheme;  // a config copied from elsewhere may say of its scales what they are not
    if (!scheme.power_of_two || io::size_of(checkpoint.info(w.scale).dtype) == 1) continue;
    const auto scales = read_scale_inv(checkpoint, w);
    scheme.power_of_two = std::ranges::all_of(scales, is_power_of_two);
  }
  type = type_of_config(config);
}

std::string ConvertSource::form_name() const {
  return high_precision() ? "high precision" : form_of_config(quantization, checkpoint.folder().string()).name();
}

ConvertReport convert_checkpoint(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options.stream);
  const ConvertSource source(model, options.assume);
  FolderPlan plan = plan_conversion(source, options);
  if (options.allow_nonfinite) plan.nonfinite = allowed_nonfinite(source.checkpoint, plan, options.stream.stop);
  plan.texts = texts_of(source, plan);
  note_lost_rounding(source, plan);
  ConvertReport report = report_of(source, plan);
  plan.identity = identity_of(plan, report.to, options.assume);
  PlannedRun run(std::move(job), source.checkpoint, plan);
  run.write(out, options.dry_run, options.join, report, report.notes);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) report.modules[i].max_error = run.max_error(i);
  return report;
}

}  // namespace fp8::quant
