// SPDX-License-Identifier: Apache-2.0
// A trace is {"..": .., "traceEvents": [EVENT, ..], ..} or [EVENT, ..]. An event is kept until its end only; sums are
// kept of at most kMostRows names, the rest is one row.
#include "fp8/tools/commands/inspect/inspect_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/table.h"
#include "trace_page_html.h"

namespace fp8::commands {
namespace {

constexpr std::size_t kMostRows = 65536, kLongestText = 4096, kMostBars = 20000, kRowsShown = 20;
constexpr const char* kOther = "(other)";

struct TraceEvent {
  std::string ph, cat, name, module, phase, lane;
  double ts = 0, dur = 0, flops = 0, bytes = 0;  ///< microseconds
};

struct TraceSum {
  double count = 0, us = 0, flops = 0, bytes = 0;

  void add(const TraceEvent& event) { count += 1, us += event.dur, flops += event.flops, bytes += event.bytes; }
};

using TraceSums = std::map<std::string, TraceSum>;

struct TraceBar {
  std::string lane, name, detail;
  double ts, dur;
  bool operator<(const TraceBar& other) const { return dur > other.dur; }  // the shortest stands on top of a heap
};

/// Sums of one category's events.
struct TraceRows {
  TraceSums ops, modules, phases;
};

void count(TraceSums& sums, const std::string& name, const TraceEvent& event) {
  auto it = sums.find(name);
  if (it == sums.end()) it = sums.emplace(sums.size() < kMostRows ? name : kOther, TraceSum{}).first;
  it->second.add(event);
}

class TraceReader final : public nlohmann::json_sax<io::Json> {
 public:
  explicit TraceReader(bool timeline) : timeline_(timeline) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& value) override {
    key_ = value.substr(0, kLongestText);
    return true;
  }
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    problem = fmt::format("byte {}: {}", position, error.what());
    return false;
  }

  std::string problem;
  bool is_trace = false;
  std::int64_t events = 0;
  TraceSums categories, steps;
  std::map<std::string, TraceRows> rows;
  std::vector<TraceBar> bars;

 private:
  bool number(double value);
  bool in_event() const { return events_depth_ > 0 && depth_ == events_depth_ + 1; }
  /// An event may name its process and thread any number of times.
  void add_to_lane(const std::string& part) {
    if (event_.lane.size() < kLongestText) event_.lane += part + " ";
  }
  bool in_args() const { return args_ && depth_ == events_depth_ + 2; }
  void finish();

  bool timeline_, args_ = false;
  int depth_ = 0, events_depth_ = 0;
  std::string key_;
  TraceEvent event_;
};

bool TraceReader::string(string_t& value) {
  std::string text = value.substr(0, kLongestText);
  if (in_event()) {
    if (key_ == "ph")
      event_.ph = std::move(text);
    else if (key_ == "cat")
      event_.cat = std::move(text);
    else if (key_ == "name")
      event_.name = std::move(text);
    else if (key_ == "tid" || key_ == "pid")
      add_to_lane(text);
  } else if (in_args()) {
    if (key_ == "module")
      event_.module = std::move(text);
    else if (key_ == "phase")
      event_.phase = std::move(text);
  }
  return true;
}

bool TraceReader::number(double value) {
  if (in_event()) {
    if (key_ == "ts")
      event_.ts = value;
    else if (key_ == "dur")
      event_.dur = value;
    else if (key_ == "tid" || key_ == "pid")
      add_to_lane(fmt::format("{}", value));
  } else if (in_args()) {
    if (key_ == "flops")
      event_.flops = value;
    else if (key_ == "bytes")
      event_.bytes = value;
  }
  return true;
}

bool TraceReader::start_object(std::size_t) {
  ++depth_;
  if (in_event()) event_ = {};
  args_ = events_depth_ > 0 && depth_ == events_depth_ + 2 ? key_ == "args" : args_ && depth_ > events_depth_ + 2;
  return true;
}

bool TraceReader::end_object() {
  if (in_event()) finish();
  if (depth_ == events_depth_ + 2) args_ = false;
  --depth_;
  return true;
}

bool TraceReader::start_array(std::size_t) {
  ++depth_;
  if (events_depth_ == 0 && (depth_ == 1 || (depth_ == 2 && key_ == "traceEvents"))) {
    events_depth_ = depth_;
    is_trace = true;
  }
  return true;
}

bool TraceReader::end_array() {
  if (depth_ == events_depth_) events_depth_ = 0;
  --depth_;
  return true;
}

void TraceReader::finish() {
  if (event_.ph != "X") return;
  ++events;
  count(categories, event_.cat, event_);
  if (event_.name.starts_with("ProfilerStep#")) count(steps, "steps", event_);
  if (event_.cat == "hpu_op" || event_.cat == "kernel" || event_.cat == "cpu_op") {
    auto& sums = rows[event_.cat];
    count(sums.ops, event_.name, event_);
    count(sums.modules,
          event_.module.empty() ? "(" + (event_.phase.empty() ? "none" : event_.phase) + ")" : event_.module, event_);
    count(sums.phases, event_.phase.empty() ? "(none)" : event_.phase, event_);
  }
  if (!timeline_ || event_.dur <= 0 || event_.cat == "Trace") return;
  if (bars.size() == kMostBars && event_.dur <= bars.front().dur) return;
  const std::string detail = event_.module.empty() ? event_.phase : event_.module;
  bars.push_back({event_.lane + event_.cat, event_.name, detail, event_.ts, event_.dur});
  std::push_heap(bars.begin(), bars.end());
  if (bars.size() <= kMostBars) return;
  std::pop_heap(bars.begin(), bars.end());
  bars.pop_back();
}

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
  TraceReader reader(timeline);
  io::Json::sax_parse(file, &reader);
  if (!reader.problem.empty()) throw io::Error(path.string() + ": " + reader.problem);
  if (!reader.is_trace)
    throw io::Error(path.string() + ": found no key 'traceEvents', allowed: a trace as profilers write it");
  std::string of = "cpu_op";
  for (const char* category : {"kernel", "hpu_op"})
    if (reader.rows.contains(category)) of = category;
  double whole = 0, steps = 0;
  for (const auto& [phase, sum] : reader.rows[of].phases) whole += sum.us;
  Inspection inspection;
  auto& json = inspection.json;
  json = {{"kind", "trace"}, {"events", reader.events}, {"of", of}, {"ms", whole / 1e3}};
  json["categories"] = io::Json::array();
  for (const auto& [name, sum] : largest_first(reader.categories))
    json["categories"].push_back(
        {{"category", name}, {"count", static_cast<std::int64_t>(sum.count)}, {"ms", sum.us / 1e3}});
  const auto step = reader.steps["steps"];
  steps = step.us;
  json["steps"] = {{"count", static_cast<std::int64_t>(step.count)}, {"ms", steps / 1e3}};
  inspection.text =
      fmt::format("{}: {} events, {:.3f} ms of {}", path.filename().string(), grouped(reader.events), whole / 1e3, of);
  if (steps > 0)
    inspection.text +=
        fmt::format(", {:.1f} % of {:.0f} steps' {:.3f} ms", 100 * whole / steps, step.count, steps / 1e3);
  inspection.text += "\n";
  const auto& rows = reader.rows[of];
  for (const auto& [key, title, sums] :
       {std::tuple("ops", "op", &rows.ops), std::tuple("modules", "module", &rows.modules),
        std::tuple("phases", "phase", &rows.phases)}) {
    json[key] = rows_json(*sums, whole);
    inspection.text += table_of(title, json[key]);
  }
  if (timeline) json["timeline"] = timeline_json(std::move(reader.bars));
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
