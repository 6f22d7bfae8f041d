// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

io::Json report(const std::string& name) {
  return {
      {"kind", "damage"},
      {"title", "model"},
      {"summary", ""},
      {"skipped", io::Json::array()},
      {"modules", {{{"name", name}, {"type", "Linear"}, {"sqnr_db", 30.0}, {"weight", nullptr}, {"input", nullptr}}}}};
}

/// The JSON inside of the page.
std::string data_of(const std::string& page) {
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const auto begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(ReportPage, CarriesTheReportAndAsksForNothingElse) {
  const auto page = report_page(report("model.layers.0.mlp.up_proj"));
  EXPECT_EQ(io::parse_json(data_of(page), "page"), report("model.layers.0.mlp.up_proj"));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, Not(HasSubstr("@FP8_REPORT_")));
}

/// Elements that are opened are closed, in order; what a browser makes of it all is another test's.
TEST(ReportPage, IsWellFormed) {
  const auto page = report_page(report("a"), "<h2>Figure</h2><svg></svg>");
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0u);
  EXPECT_THAT(page, HasSubstr("<h2>Figure</h2><svg></svg>"));
  const std::set<std::string> empty = {"meta", "input"};
  std::vector<std::string> open;
  const auto script = page.find("<script>");
  const auto html = page.substr(0, script) + page.substr(page.find("</script>", script) + 9);
  const std::regex tag("<(/?)([a-z][a-z0-9]*)[^>]*>");
  for (std::sregex_iterator i(html.begin(), html.end(), tag), end; i != end; ++i) {
    if (empty.contains((*i)[2])) continue;
    if ((*i)[1].length() == 0) {
      open.push_back((*i)[2]);
      continue;
    }
    ASSERT_FALSE(open.empty()) << i->str();
    EXPECT_EQ(open.back(), (*i)[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  for (const char* needed : {"prefers-color-scheme: dark", "@media print", "id=\"summary\"", "id=\"legend\"",
                             "name=\"viewport\"", "[30, 25, 20]"})
    EXPECT_THAT(page, HasSubstr(needed));
  EXPECT_THAT(page, Not(HasSubstr("http://www.w3.org/1999"))) << "nothing is fetched";
}

TEST(ReportPage, AMeasurementShowsWhatIsBad) {
  const auto inspected = io::Json::parse(R"({"kind": "measurement", "path": "f.json", "samples": 3, "modules": {
      "l.0.fc": {"inputs": [{"count": 1, "min": 2.5, "max": 2.5}, {"count": 2, "min": 1, "max": 4}], "outputs": null,
                 "params": {"weight": {"count": 1, "min": 0.5, "max": 0.5}}},
      "l.1.fc": {"inputs": [{"count": 1, "min": null, "max": null}], "outputs": [], "params": {}}},
      "problems": [{"place": "f.json: l.1.fc.inputs.0", "problem": "NaN or Inf in 1 of 1"}]})");
  const auto page = report_of("f.json", inspected);
  EXPECT_EQ(page["modules"][0]["input"], 4);
  EXPECT_EQ(page["modules"][0]["weight"], 0.5);
  EXPECT_EQ(page["modules"][0]["bad"], "");
  EXPECT_EQ(page["modules"][1]["input"], "bad");
  EXPECT_EQ(page["modules"][1]["bad"], "inputs.0: NaN or Inf in 1 of 1");
  EXPECT_EQ(page["summary"], "measurement of 2 modules, 3 samples; 1 modules have bad values");
}

TEST(ReportPage, NamesCannotEndTheScript) {
  const std::string name = "</script><script>alert(1)</script><!-- \xE2\x80\xA8 \"";
  const auto page = report_page(report(name));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_EQ(io::parse_json(data_of(page), "page")["modules"][0]["name"], name);
}

TEST(ReportPage, IsWrittenWhole) {
  const test::TempDir dir;
  write_report_page(dir / "r.html", report("a"));
  EXPECT_GT(std::filesystem::file_size(dir / "r.html"), 5000u);
  EXPECT_THROW(write_report_page(dir / "missing" / "r.html", report("a")), std::runtime_error);
}

}  // namespace
}  // namespace fp8::commands
