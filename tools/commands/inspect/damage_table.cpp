// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/damage_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/inspect/plan_table.h"

namespace fp8::commands {
namespace {

bool compared(const quant::CastDamage& d) { return d.signal > 0; }

std::string db_text(const quant::CastDamage& d) {
  if (!compared(d)) return "-";
  return std::isfinite(d.sqnr_db()) ? fmt::format("{:.1f}", d.sqnr_db()) : "exact";
}
std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.3g} %", 100 * share); }
std::string underflow_text(const quant::CastDamage& d) { return compared(d) ? share_text(d.underflow_share()) : "-"; }

/// One column of the table: of the module, its weight or its input.
struct DamageColumn {
  const char* header;
  std::string (*cell)(const quant::ModuleDamage& m, const quant::CastDamage& d);
  bool of_input = false;
};

std::string sqnr_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return db_text(d); }
std::string saturated_cell(const quant::ModuleDamage&, const quant::CastDamage& d) {
  return share_text(d.saturation_share());
}
std::string underflow_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return underflow_text(d); }
std::string amax_cell(const quant::ModuleDamage&, const quant::CastDamage& d) { return fmt::format("{:.4g}", d.amax); }
std::string weight_scale_cell(const quant::ModuleDamage& m, const quant::CastDamage&) {
  return m.weight_scale_inv == 0 ? "-" : fmt::format("{:.4g}", m.weight_scale_inv);
}
std::string input_scale_cell(const quant::ModuleDamage& m, const quant::CastDamage&) {
  return m.input_scale_inv ? fmt::format("{:.4g}", *m.input_scale_inv) : "per row";
}

/// Those that matter most come first: what has no room goes from the end.
constexpr DamageColumn kColumns[] = {
    {">weight\nSQNR dB", sqnr_cell},
    {">input\nSQNR dB", sqnr_cell, true},
    {">weight\nsaturated", saturated_cell},
    {">input\nsaturated", saturated_cell, true},
    {">weight\nunderflow", underflow_cell},
    {">input\nunderflow", underflow_cell, true},
    {">weight\namax", amax_cell},
    {">input\namax", amax_cell, true},
    {">weight\nscale_inv", weight_scale_cell},
    {">input\nscale_inv", input_scale_cell, true},
};

}  // namespace

std::string damage_sentence(const std::vector<quant::ModuleDamage>& modules) {
  if (modules.empty()) return "no module is in fp8";
  std::vector<double> known;
  std::size_t fair = 0, saturating = 0;
  bool exact = false;
  for (const auto& m : modules) {
    saturating += m.weight.saturated > 0 || (m.input && m.input->saturated > 0) ? 1 : 0;
    if (!compared(m.weight)) continue;
    const double db = m.sqnr_db();
    exact = exact || !std::isfinite(db);
    if (std::isfinite(db)) known.push_back(db);
    fair += db < kFairDb ? 1 : 0;
  }
  auto text = fmt::format("{} modules", modules.size());
  if (known.empty()) {
    text +=
        exact ? ", all the same as in the reference" : ", whose SQNR --reference DIR, what they were made of, tells";
  } else {
    const auto [low, high] = std::ranges::minmax(known);
    if (fair == 0)
      text += fmt::format(", all within {:.1f} dB ({:.1f} to {:.1f}); nothing to exclude", high - low, low, high);
    else
      text += fmt::format(" from {:.1f} to {:.1f} dB; {} below {:.0f} dB, the worst is {}: see --exclude", low, high,
                          fair, kFairDb, one_line(modules.front().name));
  }
  return text + (saturating > 0            ? fmt::format("; {} saturate", saturating)
                 : known.empty() && !exact ? "; none saturates"
                                           : "");
}

std::string damage_table(const std::vector<quant::ModuleDamage>& modules, std::size_t most, std::size_t width) {
  const bool inputs = std::ranges::any_of(modules, [](const auto& m) { return m.input.has_value(); });
  std::vector<std::string> headers = {"module"};
  if (inputs) headers.emplace_back(">module\nSQNR dB");
  for (const auto& column : kColumns)
    if (inputs || !column.of_input) headers.emplace_back(column.header);
  Table table(std::move(headers));
  for (std::size_t i = 0; i < std::min(most, modules.size()); ++i) {
    const auto& m = modules[i];
    std::vector<std::string> row = {one_line(m.name)};
    if (inputs)
      row.push_back(compared(m.weight) && std::isfinite(m.sqnr_db()) ? fmt::format("{:.1f}", m.sqnr_db()) : "-");
    for (const auto& column : kColumns) {
      if (!column.of_input)
        row.push_back(column.cell(m, m.weight));
      else if (inputs)
        row.push_back(m.input ? column.cell(m, *m.input) : "-");
    }
    table.row(std::move(row));
  }
  return table.text(width);
}

std::string kept_table(const std::vector<quant::SkippedModule>& kept, std::size_t width) {
  if (kept.empty()) return "";
  quant::CheckpointReport report;
  report.skipped = kept;
  Table table({"kept in high precision", ">modules", "why"});
  for (const auto& line : plan_lines(report))
    table.row({one_line(line.name), std::to_string(line.modules.size()), one_line(line.reason)});
  return table.text(width);
}

}  // namespace fp8::commands
