// SPDX-License-Identifier: Apache-2.0
// What `fp8 inspect` takes of a trace: sums by category, op, module and phase, and the longest events. A trace is
//
//   {"..": .., "traceEvents": [EVENT, ..], ..}    or    [EVENT, ..]
//   EVENT = {"ph": "X", "cat": "hpu_op", "name": "aten::mm", "ts": us, "dur": us, "args": {"module": .., "phase": ..,
//            "flops": .., "bytes": ..}, ..}
//
// It is read as a stream: an event is kept until its end only, sums are kept of at most 65536 names each, the rest is
// one row "(other)", and texts are cut at 4096 bytes. No torch here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace fp8::commands {

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
