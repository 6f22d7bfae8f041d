// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/plan_table.h"

#include <map>
#include <tuple>
#include <utility>

#include "fp8/quant/names/model_names.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/table.h"

namespace fp8::commands {
namespace {

class Lines {
 public:
  void add(const std::string& module, const std::string& scheme, const std::string& reason, std::uint64_t bytes = 0) {
    const auto [at, fresh] = index_.try_emplace({quant::folded_name(module), scheme, reason}, lines_.size());
    if (fresh) lines_.push_back({module, {}, scheme, reason});
    PlanLine& line = lines_[at->second];
    if (!line.modules.empty()) line.name = quant::folded_name(module);
    line.modules.push_back(module);
    line.bytes += bytes;
  }
  std::vector<PlanLine> take() { return std::move(lines_); }

 private:
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> index_;
  std::vector<PlanLine> lines_;
};

}  // namespace

std::vector<PlanLine> plan_lines(const quant::CheckpointReport& report) {
  Lines lines;
  for (const auto& [module, scheme] : report.quantized) lines.add(module, scheme, "");
  for (const auto& s : report.skipped) lines.add(s.name, "", s.reason, s.bytes);
  return lines.take();
}

Inspection inspect_plan(const std::filesystem::path& model, const DamageOptions& o, const Context& context) {
  quant::CheckpointOptions options;
  options.plan = plan_options(o, context);
  options.dry_run = true;
  const auto report = quant::quantize_checkpoint(model, {}, options);
  for (const auto& warning : report.warnings) context.warn(warning);
  Inspection inspection;
  inspection.json = {{"kind", "plan"},
                     {"model", model.string()},
                     {"modules_quantized", report.quantized.size()},
                     {"modules_kept", report.skipped.size()},
                     {"source_bytes", report.source_bytes},
                     {"weights_bytes", report.weights_bytes},
                     {"lines", io::Json::array()}};
  Table table({"module", ">modules", "becomes", "why"});
  for (const auto& line : plan_lines(report)) {
    const bool kept = line.scheme.empty();
    table.row(
        {line.name, std::to_string(line.modules.size()), kept ? "stays in high precision" : line.scheme, line.reason});
    inspection.json["lines"].push_back({{"name", line.name},
                                        {"modules", line.modules},
                                        {"scheme", kept ? io::Json(nullptr) : io::Json(line.scheme)},
                                        {"reason", line.reason}});
  }
  inspection.text = table.text() + "\n" + std::to_string(report.quantized.size()) + " modules become fp8, " +
                    std::to_string(report.skipped.size()) + " stay; " +
                    human_bytes(static_cast<std::int64_t>(report.source_bytes)) + " -> " +
                    human_bytes(static_cast<std::int64_t>(report.weights_bytes)) + "\n";
  return inspection;
}

}  // namespace fp8::commands
