// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/report_page.h"

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "report_page_html.h"

namespace fp8::commands {
namespace {

constexpr std::string_view kDataMark = "@FP8_REPORT_DATA@";

/// JSON inside of a script element: "</script" and "<!--" must not end or open anything.
std::string script_json(const io::Json& value) {
  std::string out;
  for (const char c : value.dump(-1, ' ', /*ensure_ascii=*/true, io::Json::error_handler_t::replace))
    out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

}  // namespace

std::string report_page(const io::Json& report) {
  std::string page(kReportPageHtml);
  const auto at = page.find(kDataMark);
  return page.replace(at, kDataMark.size(), script_json(report));
}

void write_report_page(const std::filesystem::path& path, const io::Json& report) {
  io::AtomicFile file(path);
  const std::string page = report_page(report);
  file.append(page);
  file.commit();
}

}  // namespace fp8::commands
