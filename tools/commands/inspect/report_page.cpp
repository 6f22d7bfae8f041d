// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "report_page_html.h"

namespace fp8::commands {
namespace {

constexpr std::string_view kDataMark = "@FP8_REPORT_DATA@", kFiguresMark = "@FP8_REPORT_FIGURES@",
                           kTitleMark = "@FP8_REPORT_TITLE@";

/// JSON inside of a script element: "</script" and "<!--" must not end or open anything.
std::string script_json(const io::Json& value) {
  std::string out;
  for (const char c : value.dump(-1, ' ', /*ensure_ascii=*/true, io::Json::error_handler_t::replace))
    out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

/// The template with its marks replaced, which stand in it in this order; what a text has of marks stays.
std::string filled(std::string_view page, const std::vector<std::pair<std::string_view, std::string>>& texts) {
  std::string out;
  for (const auto& [mark, text] : texts) {
    const auto at = page.find(mark);
    out.append(page.substr(0, at)).append(text);
    page.remove_prefix(at + mark.size());
  }
  return out.append(page);
}

/// By module and part ("inputs"): what is wrong with its tensors.
using Bad = std::map<std::pair<std::string, std::string>, std::string>;

Bad bad_parts(const io::Json& inspected) {
  Bad bad;
  const std::string file = inspected["path"].get<std::string>() + ": ";
  for (const auto& p : inspected["problems"]) {
    const auto place = p["place"].get<std::string>().substr(file.size());  // "module.inputs.0"
    const auto last = place.rfind('.'), before = place.rfind('.', last - 1);
    auto& text = bad[{place.substr(0, before), place.substr(before + 1, last - before - 1)}];
    text += (text.empty() ? "" : "; ") + place.substr(before + 1) + ": " + p["problem"].get<std::string>();
  }
  return bad;
}

/// The largest of a list or an object of {"min", "max"}; null for none.
io::Json largest(const io::Json& tensors) {
  io::Json found = nullptr;
  for (const auto& tensor : tensors)
    if (tensor.contains("max") && (found.is_null() || tensor["max"] > found)) found = tensor["max"];
  return found;
}

io::Json measurement_report(const std::string& title, const io::Json& inspected) {
  io::Json page = {{"kind", "measurement"}, {"title", title}, {"modules", io::Json::array()}};
  const auto bad = bad_parts(inspected);
  std::size_t bad_modules = 0;
  for (const auto& [name, m] : inspected["modules"].items()) {
    io::Json module = {{"name", name}};
    std::string problems;
    for (const auto& [key, parts, old] :
         {std::tuple("input", "inputs", "input"), {"output", "outputs", "output"}, {"weight", "params", "params"}}) {
      std::string found;
      for (const char* part : {parts, old})
        if (const auto at = bad.find({one_line(name), part}); at != bad.end()) found = at->second;
      module[key] = found.empty() ? largest(m[parts]) : io::Json("bad");
      if (!found.empty()) problems += (problems.empty() ? "" : "; ") + found;
    }
    bad_modules += problems.empty() ? 0 : 1;
    module["bad"] = std::move(problems);
    page["modules"].push_back(std::move(module));
  }
  auto summary = fmt::format("{} of {} modules", inspected["kind"].get<std::string>(), page["modules"].size());
  if (inspected["samples"].is_number_integer())
    summary += fmt::format(", {} samples", inspected["samples"].get<std::int64_t>());
  page["summary"] =
      summary + (bad_modules == 0 ? "; nothing is bad" : fmt::format("; {} modules have bad values", bad_modules));
  return page;
}

}  // namespace

std::string report_page(const io::Json& report, const std::string& figures) {
  return filled(kReportPageHtml,
                {{kTitleMark, "fp8 report"}, {kFiguresMark, figures}, {kDataMark, script_json(report)}});
}

void write_report_page(const std::filesystem::path& path, const io::Json& report, const std::string& figures) {
  io::AtomicFile file(path);
  const std::string page = report_page(report, figures);
  file.append(page);
  file.commit();
}

io::Json report_of(const std::string& title, const io::Json& inspected) {
  if (inspected["kind"] != "checkpoint") return measurement_report(title, inspected);
  if (!inspected.contains("modules"))
    throw io::Error(title + ": --html and --plot expect a checkpoint folder with config.json, or a measurement");
  io::Json page = {{"kind", "damage"},
                   {"title", title},
                   {"summary", inspected["summary"]},
                   {"modules", inspected["modules"]},
                   {"skipped", inspected["skipped"]}};
  if (!page["modules"].empty())
    page["about"] =
        page["modules"][0]["scheme"].get<std::string>() + ", " + inspected["order"].get<std::string>() + ".";
  return page;
}

}  // namespace fp8::commands
