// SPDX-License-Identifier: Apache-2.0
// The vendor's four metrics of a process, of graphs that are counted (graph_counter.h). Nothing is compiled, moved or
// run elsewhere here, so times are 0 and what tells of that is empty.
//
//   graph_compilation      TotalNumber, TotalTime, AvgTime
//   cpu_fallback           TotalNumber, FallbackOps
//   memory_defragmentation TotalNumber, TotalTime, AvgTime
//   recipe_cache           TotalHit, RecipeHit, TotalMiss, RecipeMiss      of graphs, by their number in hexadecimal
//
// PT_HPU_METRICS_FILE has them where something triggers it (PT_HPU_METRICS_DUMP_TRIGGERS, words with commas between):
// process_exit, mark_step, metric_change. "-rankN" stands before its suffix where the process is one of several.
//
//   [{"metric_name": "graph_compilation", "triggered_by": "process_exit", "generated_on": "2026-01-31 12:00:00.000",
//     "statistics": {"TotalNumber": 3, "TotalTime": 0, "AvgTime": 0.0}}, ...]
#pragma once
#include <array>

#include "fp8/runtime/graph/graph_counter.h"

namespace fp8::runtime {

inline constexpr std::array kMetrics = {"graph_compilation", "cpu_fallback", "memory_defragmentation", "recipe_cache"};

/// The process's counts, from the first call on.
CompiledGraphs process_counts();

/// A metric's statistics as a JSON object, of `counts` less those of `since`. Throws c10::Error for another name.
std::string metric_json(const std::string& name, const CompiledGraphs& counts, const CompiledGraphs& since = {});

/// Writes the four, `format` "json" or "text". Throws c10::Error for another, io::Error for a file that can't be
/// written.
void dump_metrics(const std::string& path, const std::string& format, const std::string& triggered_by = "user");

}  // namespace fp8::runtime
