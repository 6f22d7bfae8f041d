// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect --html`: one self-contained page (no network, no other files) with a heat map layer x module, histograms
// and a table with search. The page is report_page.html; this fills its data in.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// report: {"kind", "title", "summary", "about"?, "modules": [..], "skipped"?: [{"name", "reason"}],
/// "skipped_title"?}; what a module has hangs on the kind, each key but its name optional:
///
///   damage       {"name", "type", "scheme", "sqnr_db", "weight": PART, "input": PART}, PART: {"amax", "scale_inv",
///                "sqnr_db", "saturation", "underflow", "largest", "smallest", "octaves": {"first_exponent", "counts"}}
///   measurement  {"name", "input", "output", "weight", "bad"}: amaxes, and what is wrong with them
///   diff         {"name", "type", "before", "after", "ratio", "change"}: a tensor's; change: max(ratio, 1 / ratio)
///   training     {"name", "type", "saturation", "underflow", "amax"}: type: the run
///
/// figures: HTML that stands above all of it. Any text in the report is shown as text.
std::string report_page(const io::Json& report, const std::string& figures = "");

/// Writes the page, atomically. Throws io::Error.
void write_report_page(const std::filesystem::path& path, const io::Json& report, const std::string& figures = "");

/// What the page shows of inspect's result for a checkpoint (with "modules") or a measurement. Throws io::Error for a
/// checkpoint without them.
io::Json report_of(const std::string& title, const io::Json& inspected);

}  // namespace fp8::commands
