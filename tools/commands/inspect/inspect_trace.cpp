// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/output.h"
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

io::Json rows_json(const TraceSums& sums, double whole) {
  io::Json rows = io::Json::array();
  for (const auto& [name, sum] : largest_first(sums))
    rows.push_back({{"name", name},
                    {"count", static_cast<std::int64_t>(sum.count)},
                    {"ms", sum.us / 1e3},
                    {"share", whole > 0 ? sum.us / whole : 0},
                    {"gflops", sum.us > 0 ? sum.flops / sum.us / 1e3 : 0},
                    {"gbps", sum.us > 0 ? sum.bytes / sum.us / 1e3 : 0}});
  return rows;
}

std::string table_of(const char* title, const io::Json& rows) {
  Table table({title, ">count", ">ms", ">share", ">GFLOP/s", ">GB/s"});
  std::size_t shown = 0;
  for (const auto& row : rows) {
    if (++shown > kRowsShown) break;
    table.row({one_line(row["name"].get<std::string>()), row["count"].dump(),
               fmt::format("{:.3f}", row["ms"].get<double>()),
               fmt::format("{:.2f} %", 100 * row["share"].get<double>()),
               fmt::format("{:.2f}", row["gflops"].get<double>()), fmt::format("{:.2f}", row["gbps"].get<double>())});
  }
  std::string text = "\n" + table.text();
  if (rows.size() > kRowsShown) text += fmt::format("({} more: --json)\n", rows.size() - kRowsShown);
  return text;
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
  if (!file) throw io::Error(path.string() + ": can't be read");
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
        std::tuple("phases", "phase", &rows.phases)}) {
    json[key] = rows_json(*sums, whole);
    inspection.text += table_of(title, json[key]);
  }
  if (timeline) json["timeline"] = timeline_json(std::move(trace.bars));
  return inspection;
}

void write_trace_page(const std::filesystem::path& file, const std::filesystem::path& trace,
                      const Inspection& inspection) {
  const io::Json data = {{"title", trace.filename().string()}, {"bars", inspection.json.at("timeline")}};
  std::string text, page(kTracePageHtml);
  for (const char c : data.dump(-1, ' ', /*ensure_ascii=*/true, io::Json::error_handler_t::replace))
    text += c == '<' ? "\\u003c" : std::string(1, c);
  constexpr std::string_view kMark = "@FP8_TRACE_DATA@";
  page.replace(page.find(kMark), kMark.size(), text);
  io::AtomicFile out(file);
  out.append(page);
  out.commit();
}

}  // namespace fp8::commands
