// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform.h"

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/forms/model_source.h"

namespace fp8::quant {

namespace fs = std::filesystem;

ConvertReport convert_checkpoint(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  Job job(model, options.stream);
  const SourceFolder source(model, options.assume);
  const FolderPlan plan = plan_conversion(source, options);
  PlannedRun run(std::move(job), source, plan);
  ConvertReport report;
  report.from = source.form_name();
  if (!source.high_precision()) report.from += ": " + source.stored.weights.front().spec.scheme.describe();
  report.to = plan.describe();
  report.notes = plan.notes;
  for (auto& note : nonfinite_notes(source, plan)) report.notes.push_back(std::move(note));
  for (auto& notice : notices_beside(source.checkpoint)) report.notes.push_back(std::move(notice));
  report.kv = plan.config.kv.size();
  report.source_bytes = source.checkpoint.total_bytes();
  run.write(out, options.dry_run, options.join, report, report.notes);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const PlannedWeight& w = plan.weights[i];
    report.modules.push_back({w.to.module, w.change, w.exact, w.reason, run.max_error(i)});
  }
  return report;
}

}  // namespace fp8::quant
