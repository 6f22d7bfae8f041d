// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/pipeline.h"

namespace fp8::quant {

namespace fs = std::filesystem;

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
    if (marked) sidecar["run"] = run_mark(units, stream);
    if (!sidecar.is_null()) folder.write_json(kSidecarName, sidecar);
    auto warnings = source.empty() ? std::vector<std::string>() : folder.carry_through(source);
    if (texts.card.has_value()) write_card(folder, *texts.card, warnings);
    if (left != nullptr) *left = std::move(warnings);
  });
}

PlannedRun::PlannedRun(Job job, const SourceFolder& source, const FolderPlan& plan)
    : plan_(plan), pipeline_(source.checkpoint, plan), job_(std::move(job)) {
  job_.identify(plan.identity);
  job_.units = pipeline_.units();
  job_.form = plan.form;
  job_.texts = plan.texts;
  job_.texts.card->weights_bytes = job_.weights_bytes(),
  job_.texts.card->source_bytes = source.checkpoint.total_bytes();
  job_.marked = true;
  for (const auto& [tensor, found] : plan.nonfinite) job_.stream.nonfinite.insert(tensor);
}

void PlannedRun::write(const fs::path& out, bool dry_run, bool join, WriteReport& report,
                       std::vector<std::string>& warnings) {
  report.units = job_.units.size();
  report.weights_bytes = job_.weights_bytes();
  if (dry_run) return;
  if (plan_.form != nullptr) job_.quantization = plan_.form->config(plan_.config);
  std::vector<std::string> left;
  const auto result = job_.write(out, join, &left);
  for (const auto& lines : {left, pipeline_.lost(), result.warnings})
    warnings.insert(warnings.end(), lines.begin(), lines.end());
  report.units_kept = result.kept;
  report.shares = result.shares;
  report.finished_before = result.finished_before;
}

}  // namespace fp8::quant
