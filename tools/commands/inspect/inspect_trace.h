// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect` of a trace in Chrome's form: what HPUProfiler, --profile and torch.profiler write. It is read as a
// stream: memory does not grow with the file, beside its longest string.
#pragma once
#include <istream>

#include "fp8/tools/commands/inspect/inspect.h"

namespace fp8::commands {

/// True for a file whose name ends in .trace.json, and for a .json file that begins as a trace does.
bool is_trace(const std::filesystem::path& path);

/// "kind": "trace", "events", "categories": [{category, count, ms}], "steps": {count, ms} of ProfilerStep events,
/// "of": the category of the rows: hpu_op, else kernel, else cpu_op, whose times hold those of the ops they call;
/// "ops", "modules", "phases": [{name, count, ms, share, gflops, gbps}], the largest first. timeline: json["timeline"]
/// has the 20000 longest events [lane, name, start ms, ms, detail]. Throws io::Error.
Inspection inspect_trace(const std::filesystem::path& path, bool timeline = false);

/// The timeline as one self-contained page. inspection: of inspect_trace(.., true).
void write_trace_page(const std::filesystem::path& file, const std::filesystem::path& trace,
                      const Inspection& inspection);

// The trace report of `fp8 inspect`: sums by category, op, module and phase, and the longest events. A trace is
//
//   {"..": .., "traceEvents": [EVENT, ..], ..}    or    [EVENT, ..]
//   EVENT = {"ph": "X", "cat": "hpu_op", "name": "aten::mm", "ts": us, "dur": us, "args": {"module": .., "phase": ..,
//            "flops": .., "bytes": ..}, ..}
//
// It is read as a stream: an event is kept until its end only, sums are kept of at most 65536 names each, the rest is
// one row "(other)", and texts are cut at 4096 bytes. No torch here.

inline constexpr std::size_t kMostTraceRows = 65536, kMostTraceBars = 20000;

struct TraceSum {
  double count = 0, us = 0, flops = 0, bytes = 0;
};
using TraceSums = std::map<std::string, TraceSum>;

/// Sums of one category's events.
struct TraceRows {
  TraceSums ops, modules, phases;
};

/// An event of the timeline; microseconds.
struct TraceBar {
  std::string lane, name, detail;
  double ts, dur;
};

struct TraceContents {
  std::int64_t events = 0;                ///< with a duration: of "ph" X
  TraceSums categories;                   ///< of all of them
  TraceSum steps;                         ///< "ProfilerStep#.."
  std::map<std::string, TraceRows> rows;  ///< of hpu_op, kernel and cpu_op
  std::vector<TraceBar> bars;             ///< the longest, in no order; none unless asked for
};

/// Throws io::Error naming `name`, with the byte, for what is no JSON, and for a JSON that is no trace.
TraceContents read_trace(std::istream& file, const std::string& name, bool timeline);

}  // namespace fp8::commands
