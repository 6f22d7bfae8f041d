// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect` of a trace in Chrome's form: what HPUProfiler, --profile and torch.profiler write. It is read as a
// stream: memory does not grow with the file, beside its longest string.
#pragma once
#include <filesystem>

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

}  // namespace fp8::commands
