// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/json/json.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

io::Json report(const std::string& name) {
  return {
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
  EXPECT_THAT(page, Not(HasSubstr("@FP8_REPORT_DATA@")));
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
