// SPDX-License-Identifier: Apache-2.0
// Cases that are texts: a file has what goes in, and below it what must come of it.
#pragma once
#include <algorithm>
#include <fstream>
#include <source_location>

#include "support/matchers.h"

namespace fp8::test {

/// Beside a test's source NAME.cpp, NAME.txt has a section "== SUITE.TEST" for it; `more` is behind its name where a
/// test has several. A case is the text that f gets, of one or more lines, and a line for each check of what f returns:
/// "  = " with the whole of it, "  ~ " with a part, "  ^ " with its beginning. A line with "# " first is a comment.
template <class F>
void expect_golden(F&& f, const std::string& more = "",
                   const std::source_location place = std::source_location::current()) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string section = std::string("== ") + test->test_suite_name() + "." + test->name() + more;
  const std::string source = place.file_name();
  const std::string file = source.substr(source.rfind("tests/"), source.rfind('.') - source.rfind("tests/")) + ".txt";
  std::ifstream lines(FP8_SOURCE_DIR "/" + file);
  std::string input, found;
  bool inside = false, called = true;
  int number = 0, checks = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("== ")) inside = line == section;
    if (!inside || line.empty() || line == section || line.starts_with("# ")) continue;
    const bool check =
        line == "  =" || line.starts_with("  = ") || line.starts_with("  ~ ") || line.starts_with("  ^ ");
    if (!check) {
      input = called ? line : input + '\n' + line;
      called = false;
      continue;
    }
    if (!called) found = f(input);
    called = true;
    ++checks;
    SCOPED_TRACE(file + ":" + std::to_string(number) + ": " + input);
    const std::string expected = line.substr(std::min<std::size_t>(line.size(), 4));
    if (line[2] == '=')
      EXPECT_EQ(found, expected);
    else if (line[2] == '~')
      EXPECT_THAT(found, HasSubstr(expected));
    else
      EXPECT_THAT(found, StartsWith(expected));
  }
  EXPECT_GT(checks, 0) << "no " << section << " in " << file;
  EXPECT_TRUE(called) << "nothing is said of " << input << " in " << file;
}

}  // namespace fp8::test

/// EXPECT_GOLDEN(outcome_of(text)): expect_golden() of an expression of `text`.
#define EXPECT_GOLDEN(expression, ...) \
  ::fp8::test::expect_golden([&](const std::string& text) { return expression; } __VA_OPT__(, ) __VA_ARGS__)
