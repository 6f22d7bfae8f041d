// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "fp8/tools/commands/cli/command.h"
#include "support/shell.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandPage page() {
  return {"measurements cut",
          "Cuts measurements into pieces.",
          "fp8 measurements cut stats --pieces 3 --out pieces --way long",
          {{.names = {"PATH"},
            .type = "PATH",
            .help = "What is cut",
            .value = Value::file,
            .required = true,
            .repeated = true,
            .positional = true},
           {.names = {"--out"}, .type = "PATH", .help = "Folder", .value = Value::file, .required = true},
           {.names = {"-n", "--pieces"}, .type = "N", .fallback = "2", .help = "How many", .value = Value::word},
           {.names = {"--way"},
            .type = "long|short",
            .help = "How",
            .words = {"long", "short"},
            .value = Value::word,
            .shelf = Shelf::advanced},
           {.names = {"--join"}, .help = "Of several", .shelf = Shelf::processes}}};
}

TEST(HelpText, CommonOptionsFirstAndTheRestOnRequest) {
  EXPECT_EQ(help_text(page(), 80, false),
            "Cuts measurements into pieces.\n\n"
            "Usage: fp8 measurements cut PATH... --out PATH [OPTION]...\n\n"
            "Arguments:\n"
            "  PATH                     What is cut\n\n"
            "Options:\n"
            "  --out PATH               Folder\n"
            "  -n, --pieces N           How many (default 2)\n\n"
            "Example:\n"
            "  fp8 measurements cut stats --pieces 3 --out pieces --way long\n\n"
            "fp8 measurements cut --help-all shows 2 options more.\n");
  const std::string all = help_text(page(), 80, true);
  EXPECT_THAT(all, HasSubstr("\nAdvanced options:\n  --way long|short         How\n\n"
                             "Several processes:\n  --join                   Of several\n"));
  EXPECT_THAT(all, Not(HasSubstr("options more")));
}

TEST(HelpText, LongTextsGoOnBelowThemselves) {
  EXPECT_EQ(wrapped("one two three", 8, 2), "one two\n  three");
  EXPECT_EQ(wrapped("one two three", 100, 2), "one two three");
  EXPECT_EQ(wrapped("seventeenletters x", 8, 2), "seventeenletters\n  x");
  EXPECT_EQ(wrapped("\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xA4", 5, 0),
            "\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xA4");  // columns, not bytes
  EXPECT_EQ(wrapped("", 8, 2), "");
}

/// No line of any command's help is longer than the terminal, but for words that are.
TEST(HelpText, FitsTheTerminal) {
  const CommandPage program = page_of_program();
  std::vector<CommandPage> pages = {program};
  for (const CommandPage& child : program.children) {
    pages.push_back(child);
    pages.insert(pages.end(), child.children.begin(), child.children.end());
  }
  for (const std::size_t width : {60u, 80u, 120u, 200u}) {
    for (const CommandPage& one : pages) {
      std::istringstream lines(help_text(one, width, true));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(line.size(), std::max<std::size_t>(std::min<std::size_t>(width, 120), 78)) << width << ": " << line;
    }
  }
}

TEST(HelpText, ACommandLineThatIsBrokenIsStillOne) {
  CommandPage narrow = page();
  const std::string text = help_text(narrow, 44, false);
  EXPECT_THAT(text, HasSubstr("  fp8 measurements cut stats --pieces 3 \\\n      --out pieces --way long\n"));
}

}  // namespace

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
