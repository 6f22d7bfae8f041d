// SPDX-License-Identifier: Apache-2.0
// What writers of checkpoints do alike before and after the rows: reading the source, the members of a plan that do not
// depend on which of the two it is, the files beside the weights.
#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/kernels/cast.h"

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

}  // namespace

SourceFolder::SourceFolder(const fs::path& model, const CheckpointForm& form, const ModuleChoice& choice)
    : config(read_model_config(model, &form)), checkpoint(model), modules(checkpoint, config, choice) {
  require_no_codes(checkpoint, form.needs_mxfp4() ? mxfp4_stacks(checkpoint) : std::vector<std::string>());
  incomplete = require_complete(checkpoint, config, modules);
  require_promised_shapes(checkpoint, config);
}

SourceFolder::SourceFolder(const fs::path& model, const std::string& assume)
    : checkpoint((require_model_folder(model), model)) {
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
  modules = CheckpointModules(checkpoint, config);
  incomplete = require_complete(checkpoint, config, modules);
  for (auto& w : stored.weights) {
    Scheme& scheme = w.spec.scheme;  // a config copied from elsewhere may say of its scales what they are not
    if (!scheme.power_of_two || io::size_of(checkpoint.info(w.scale).dtype) == 1) continue;
    scheme.power_of_two = has_powers_of_two(w);
  }
  type = type_of_config(config);
}

bool SourceFolder::has_powers_of_two(const StoredWeight& weight) const {
  return std::ranges::all_of(read_scale_inv(checkpoint, weight), is_power_of_two);
}

std::string SourceFolder::form_name() const {
  return high_precision() ? "high precision" : form_of_config(quantization, folder()).name();
}

std::string FolderPlan::describe() const {
  return form == nullptr ? kernels::name_of(type) : std::string(form->name()) + ": " + config.scheme.describe();
}

std::vector<PlannedPiece> pieces_of(const io::Checkpoint& source, const std::vector<PlannedWeight>& weights,
                                    const std::set<std::string>& dropped, const StackedExperts& renamed) {
  std::map<std::string, std::vector<std::size_t>> by_tensor, groups;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const PlannedWeight& w = weights[i];
    by_tensor[w.tied ? "" : w.in_codes() ? w.from.weight : w.values.tensor].push_back(i);
    if (!w.in_codes() && !w.fuse_group.empty()) groups[w.fuse_group].push_back(i);
  }
  std::vector<PlannedPiece> pieces;
  const auto add = [&](const std::vector<std::size_t>& list) {
    for (const std::size_t i : list) {
      const auto group = weights[i].in_codes() ? groups.end() : groups.find(weights[i].fuse_group);
      if (group == groups.end())
        pieces.push_back({{i}, "", ""});
      else if (group->second.front() == i)
        pieces.push_back({group->second, "", ""});
    }
  };
  for (const auto& tensor : source.names()) {
    if (const auto found = by_tensor.find(tensor); found != by_tensor.end())
      add(found->second);
    else if (!dropped.contains(tensor))
      pieces.push_back({{}, tensor, renamed.written_name(tensor)});
  }
  add(by_tensor[""]);
  return pieces;
}

io::Json sidecar_of(const FolderPlan& plan, const std::string& measurements, std::vector<SkippedModule> skipped,
                    const io::Json& more) {
  Plan said;
  said.scale_method = plan.config.scale_method;
  said.measurements = measurements;
  said.skipped = std::move(skipped);
  said.skipped.insert(said.skipped.end(), plan.skipped.begin(), plan.skipped.end());
  io::Json sidecar = plan.form == nullptr ? make_note() : make_sidecar(said, plan.config.scheme);
  sidecar.update(more);
  if (!plan.nonfinite.empty()) sidecar["nonfinite"] = nonfinite_json(plan.nonfinite);
  return sidecar;
}

CardFacts card_of(const SourceFolder& source, const FolderPlan& plan, const std::string& how) {
  const bool decoded = plan.form == nullptr;
  CardFacts card{model_name(source.checkpoint.folder()), decoded ? "" : plan.form->name(),
                 decoded ? kernels::name_of(plan.type) : plan.config.scheme.describe(), how};
  card.modules = plan.weights.size();
  card.kept = plan.skipped;
  return card;
}

std::vector<std::string> nonfinite_notes(const SourceFolder& source, const FolderPlan& plan) {
  std::vector<std::string> notes;
  for (const auto& [tensor, found] : plan.nonfinite) {
    const auto values = static_cast<std::uint64_t>(source.checkpoint.info(tensor).numel());
    notes.push_back(io::message("{}: copied with {}", tensor, found.text(values)));
  }
  return notes;
}

Unit kv_unit(const CheckpointForm& form, const ConfigSpec& config, const KvScales& kv, const std::string& name) {
  const auto write = [&](UnitContext& context) {
    form.write_kv(context, kv, config);
    context.advance(0);
  };
  return {name, form.kv_entries(kv, config), 0, write, {}};
}

Job::Job(const fs::path& source, const StreamOptions& options) : stream(options) {
  stream.source = source;
  if (source.empty()) return;
  files_ = identity_of(source);
  stream.carried = carried_identity_of(source);
}

void Job::identify(io::Json identity) {
  stream.identity = std::move(identity);
  if (!stream.source.empty()) stream.identity["source"] = files_;
}

std::uint64_t Job::weights_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& unit : units)
    for (const auto& e : unit.entries) bytes += bytes_of(e);
  return bytes;
}

StreamResult Job::write(const fs::path& out, bool join, std::vector<std::string>* left) const {
  return make_checkpoint(out, units, stream, join, [&](OutputFolder& folder) {
    const fs::path& source = stream.source;
    io::Json edits = {{"quantization_config", quantization}}, sidecar = texts.sidecar;
    edits.update(texts.edits);
    folder.write_config(source.empty() ? source : source / io::kConfigFile, edits);
    if (form != nullptr)
      for (const auto& [name, value] : form->extra_files(quantization)) folder.write_json(name, value);
    auto warnings = source.empty() ? std::vector<std::string>() : folder.carry_through(source);
    if (texts.card.has_value()) write_card(folder, *texts.card, warnings);
    if (marked) {
      sidecar["run"] = run_mark(units, stream);
      folder.write_sidecar(sidecar);
    } else if (!sidecar.is_null()) {
      folder.write_json(kSidecarName, sidecar);
    }
    if (left != nullptr) *left = std::move(warnings);
  });
}

}  // namespace fp8::quant
