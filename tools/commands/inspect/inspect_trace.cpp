// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_trace.h"

#include <fmt/format.h>

#include <fstream>

#include "fp8/tools/commands/cli/report.h"
#include "trace_page_html.h"

namespace fp8::commands {
namespace {

constexpr std::size_t kRowsShown = 20;

std::vector<std::pair<std::string, TraceSum>> largest_first(const TraceSums& sums) {
  std::vector<std::pair<std::string, TraceSum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows, std::ranges::greater(), [](const auto& row) { return row.second.us; });
  return rows;
}

/// All sums go to the inspection's list `key`, the largest to its text, as a table.
void add_rows(const char* key, const char* title, const TraceSums& sums, double whole, Inspection& inspection) {
  auto& rows = inspection.json[key] = io::Json::array();
  Table table({title, ">count", ">ms", ">share", ">GFLOP/s", ">GB/s"});
  for (const auto& [name, sum] : largest_first(sums)) {
    const auto count = static_cast<std::int64_t>(sum.count);
    const double ms = sum.us / 1e3, share = whole > 0 ? sum.us / whole : 0,
                 gflops = sum.us > 0 ? sum.flops / sum.us / 1e3 : 0, gbps = sum.us > 0 ? sum.bytes / sum.us / 1e3 : 0;
    if (rows.size() < kRowsShown)
      table.row({one_line(name), std::to_string(count), fmt::format("{:.3f}", ms), fmt::format("{:.2f} %", 100 * share),
                 fmt::format("{:.2f}", gflops), fmt::format("{:.2f}", gbps)});
    rows.push_back(
        {{"name", name}, {"count", count}, {"ms", ms}, {"share", share}, {"gflops", gflops}, {"gbps", gbps}});
  }
  inspection.text += "\n" + table.text();
  if (rows.size() > kRowsShown) inspection.text += fmt::format("({} more: --json)\n", rows.size() - kRowsShown);
}

io::Json timeline_json(std::vector<TraceBar> bars) {
  double start = bars.empty() ? 0 : bars[0].ts;
  for (const auto& bar : bars) start = std::min(start, bar.ts);
  std::ranges::sort(bars, {}, [](const TraceBar& bar) { return std::pair(bar.ts, -bar.dur); });
  io::Json out = io::Json::array();
  for (const auto& bar : bars) out.push_back({bar.lane, bar.name, (bar.ts - start) / 1e3, bar.dur / 1e3, bar.detail});
  return out;
}

}  // namespace

bool is_trace(const std::filesystem::path& path) {
  if (path.filename().string().ends_with(".trace.json")) return true;
  if (path.extension() != ".json") return false;
  std::array<char, 512> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), start.size());
  const std::string_view text(start.data(), static_cast<std::size_t>(file.gcount()));
  return text.find("\"traceEvents\"") != text.npos || text.find("\"schemaVersion\"") != text.npos;
}

Inspection inspect_trace(const std::filesystem::path& path, bool timeline) {
  std::ifstream file(path, std::ios::binary);
  if (!file) io::fail<io::Error>("{}: can't be read", path.string());
  auto trace = read_trace(file, path.string(), timeline);
  std::string of = "cpu_op";
  for (const char* category : {"kernel", "hpu_op"})
    if (trace.rows.contains(category)) of = category;
  double whole = 0;
  for (const auto& [phase, sum] : trace.rows[of].phases) whole += sum.us;
  Inspection inspection;
  auto& json = inspection.json;
  json = {{"kind", "trace"}, {"events", trace.events}, {"of", of}, {"ms", whole / 1e3}};
  json["categories"] = io::Json::array();
  for (const auto& [name, sum] : largest_first(trace.categories))
    json["categories"].push_back(
        {{"category", name}, {"count", static_cast<std::int64_t>(sum.count)}, {"ms", sum.us / 1e3}});
  const TraceSum& steps = trace.steps;
  json["steps"] = {{"count", static_cast<std::int64_t>(steps.count)}, {"ms", steps.us / 1e3}};
  inspection.text = fmt::format("{}: {} events, {:.3f} ms of {}", one_line(path.filename().string()),
                                grouped(trace.events), whole / 1e3, of);
  if (steps.us > 0)
    inspection.text +=
        fmt::format(", {:.1f} % of {:.0f} steps' {:.3f} ms", 100 * whole / steps.us, steps.count, steps.us / 1e3);
  inspection.text += "\n";
  const auto& rows = trace.rows[of];
  for (const auto& [key, title, sums] :
       {std::tuple("ops", "op", &rows.ops), std::tuple("modules", "module", &rows.modules),
        std::tuple("phases", "phase", &rows.phases)})
    add_rows(key, title, *sums, whole, inspection);
  if (timeline) json["timeline"] = timeline_json(std::move(trace.bars));
  return inspection;
}

void write_trace_page(const std::filesystem::path& file, const std::filesystem::path& trace,
                      const Inspection& inspection) {
  const io::Json data = {{"title", trace.filename().string()}, {"bars", inspection.json.at("timeline")}};
  write_output_file(file, filled_page(kTracePageHtml, {{"@FP8_TRACE_DATA@", script_json(data)}}));
}

}  // namespace fp8::commands
