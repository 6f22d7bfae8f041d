// SPDX-License-Identifier: Apache-2.0

#include "fp8/runtime/profile/owner.h"
#include "fp8/tools/commands/inspect/inspect_trace.h"

namespace fp8::commands {
namespace {

constexpr std::size_t kLongestText = 4096;
constexpr const char* kOther = "(other)";

struct TraceEvent {
  std::string ph, cat, name, module, phase, lane;
  double ts = 0, dur = 0, flops = 0, bytes = 0;  ///< microseconds
};

void add(TraceSum& sum, const TraceEvent& event) {
  sum.count += 1, sum.us += event.dur, sum.flops += event.flops, sum.bytes += event.bytes;
}

void count(TraceSums& sums, const std::string& name, const TraceEvent& event) {
  auto it = sums.find(name);
  if (it == sums.end()) it = sums.emplace(sums.size() < kMostTraceRows ? name : kOther, TraceSum{}).first;
  add(it->second, event);
}

/// Puts the shortest on top of a heap.
bool longer(const TraceBar& a, const TraceBar& b) { return a.dur > b.dur; }

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
  bool string(string_t& value) override {
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
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_event()) event_ = {};
    args_ = events_depth_ > 0 && depth_ == events_depth_ + 2 ? key_ == "args" : args_ && depth_ > events_depth_ + 2;
    return true;
  }
  bool end_object() override {
    if (in_event()) finish();
    if (depth_ == events_depth_ + 2) args_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (events_depth_ == 0 && (depth_ == 1 || (depth_ == 2 && key_ == "traceEvents"))) {
      events_depth_ = depth_;
      is_trace = true;
    }
    return true;
  }
  bool end_array() override {
    if (depth_ == events_depth_) events_depth_ = 0;
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    problem = "byte " + std::to_string(position) + ": " + error.what();
    return false;
  }

  std::string problem;
  bool is_trace = false;
  TraceContents contents;

 private:
  bool number(double value) {
    if (in_event()) {
      if (key_ == "ts")
        event_.ts = value;
      else if (key_ == "dur")
        event_.dur = value;
      else if (key_ == "tid" || key_ == "pid")
        add_to_lane(io::Json(value).dump());
    } else if (in_args()) {
      if (key_ == "flops")
        event_.flops = value;
      else if (key_ == "bytes")
        event_.bytes = value;
    }
    return true;
  }
  bool in_event() const { return events_depth_ > 0 && depth_ == events_depth_ + 1; }
  /// An event may name its process and thread any number of times.
  void add_to_lane(const std::string& part) {
    if (event_.lane.size() < kLongestText) event_.lane += part + " ";
  }
  bool in_args() const { return args_ && depth_ == events_depth_ + 2; }
  void finish() {
    if (event_.ph != "X") return;
    ++contents.events;
    count(contents.categories, event_.cat, event_);
    if (event_.name.starts_with("ProfilerStep#")) add(contents.steps, event_);
    if (event_.cat == "hpu_op" || event_.cat == "kernel" || event_.cat == "cpu_op") {
      auto& sums = contents.rows[event_.cat];
      count(sums.ops, event_.name, event_);
      count(sums.modules, runtime::owner_of(event_.module, event_.phase), event_);
      count(sums.phases, event_.phase.empty() ? "(none)" : event_.phase, event_);
    }
    if (!timeline_ || event_.dur <= 0 || event_.cat == "Trace") return;
    auto& bars = contents.bars;
    if (bars.size() == kMostTraceBars && event_.dur <= bars.front().dur) return;
    const std::string detail = event_.module.empty() ? event_.phase : event_.module;
    bars.push_back({event_.lane + event_.cat, event_.name, detail, event_.ts, event_.dur});
    std::ranges::push_heap(bars, longer);
    if (bars.size() <= kMostTraceBars) return;
    std::ranges::pop_heap(bars, longer);
    bars.pop_back();
  }

  bool timeline_, args_ = false;
  int depth_ = 0, events_depth_ = 0;
  std::string key_;
  TraceEvent event_;
};

}  // namespace

TraceContents read_trace(std::istream& file, const std::string& name, bool timeline) {
  TraceReader reader(timeline);
  io::Json::sax_parse(file, &reader);
  if (!reader.problem.empty()) io::fail<io::Error>("{}: {}", name, reader.problem);
  if (!reader.is_trace)
    io::fail<io::Error>("{}: found no key 'traceEvents', allowed: a trace as profilers write it", name);
  return std::move(reader.contents);
}

}  // namespace fp8::commands
