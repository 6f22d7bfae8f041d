// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/help_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "fp8/tools/commands/cli/command.h"

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
}  // namespace fp8::commands
