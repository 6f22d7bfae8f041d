// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "fp8/tools/commands/cli/command.h"
#include "support/shell.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;

TEST(ManPage, HasWhatTheTableHas) {
  const CommandPage page{
      "measurements cut",
      "Cuts 'em",
      "fp8 measurements cut a\\b",
      {{.names = {"PATH"}, .type = "PATH", .help = ".hidden?", .value = Value::file, .positional = true},
       {.names = {"-n", "--pieces"}, .type = "N", .fallback = "2", .help = "How many", .value = Value::word}}};
  const std::string text = man_page(page, "1.2.3");
  EXPECT_EQ(man_name(page), "fp8-measurements-cut");
  EXPECT_THAT(text, HasSubstr(".TH FP8\\-MEASUREMENTS\\-CUT 1 \"\" \"fp8 1.2.3\" \"fp8 manual\"\n"));
  EXPECT_THAT(text, HasSubstr(".SH NAME\nfp8\\-measurements\\-cut \\- Cuts \\(aqem\n"));
  EXPECT_THAT(text, HasSubstr(".TP\n\\fIPATH\\fR\n\\&.hidden?\n"));
  EXPECT_THAT(text, HasSubstr(".TP\n\\fB\\-n\\fR, \\fB\\-\\-pieces\\fR \\fIN\\fR\nHow many\n(default 2)\n"));
  EXPECT_THAT(text, HasSubstr("a\\eb\n.EE\n"));
  EXPECT_THAT(text, HasSubstr("130, 143\n"));
}

/// What a program says of the page of each command; "" where nothing is wrong.
std::string complaints(const std::string& program) {
  const test::TempDir folder;
  const CommandPage all = page_of_program();
  std::string files;
  const auto write = [&](const CommandPage& page) {
    const auto file = folder / (man_name(page) + ".1");
    std::ofstream(file) << man_page(page, "1.2.3");
    files += " '" + file.string() + "'";
  };
  write(all);
  for (const CommandPage& page : all.children) {
    write(page);
    for (const CommandPage& child : page.children) write(child);
  }
  return test::run_shell("for f in" + files + "; do " + program + " \"$f\" 2>&1 > /dev/null; done").text;
}

TEST(ManPage, GroffHasNothingToSay) {
  if (!test::is_installed("groff")) GTEST_SKIP() << "no groff here";
  EXPECT_EQ(complaints("groff -man -ww -Tascii"), "");
}

TEST(ManPage, MandocHasNothingToSay) {
  if (!test::is_installed("mandoc")) GTEST_SKIP() << "no mandoc here";
  EXPECT_EQ(complaints("mandoc -T lint -W error"), "");
}

}  // namespace
}  // namespace fp8::commands
