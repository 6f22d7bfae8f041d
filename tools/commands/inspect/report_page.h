// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect --html`: one self-contained page (no network, no other files) with a heat map layer x module, histograms
// and a table with search. The page is report_page.html; this fills its data in.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// report: {"title", "summary", "modules": [{"name", "type", "scheme"?, "sqnr_db", "weight": PART, "input": PART}],
/// "skipped": [..]}, PART: {"amax", "scale_inv", "sqnr_db", "saturation", "underflow", "largest", "smallest",
/// "octaves": {"first_exponent", "counts"}}, each key of a part optional. Any text in it is shown as text.
std::string report_page(const io::Json& report);

/// Writes the page, atomically. Throws io::Error.
void write_report_page(const std::filesystem::path& path, const io::Json& report);

}  // namespace fp8::commands
