// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/screen.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace fp8::commands {
namespace {

bool colored(ColorMode mode, bool terminal, const std::map<std::string, std::string>& environment) {
  return takes_color(mode, terminal, [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(Screen, ColorsAreForTerminalsUnlessSomebodySaysSo) {
  using enum ColorMode;
  EXPECT_TRUE(colored(automatic, true, {}));
  EXPECT_FALSE(colored(automatic, false, {}));
  EXPECT_FALSE(colored(automatic, true, {{"NO_COLOR", "1"}}));
  EXPECT_FALSE(colored(automatic, true, {{"NO_COLOR", "0"}}));  // whatever its value, no-color.org says
  EXPECT_TRUE(colored(automatic, true, {{"NO_COLOR", ""}}));
  EXPECT_FALSE(colored(automatic, true, {{"CLICOLOR", "0"}}));
  EXPECT_TRUE(colored(automatic, true, {{"CLICOLOR", "1"}}));
  EXPECT_FALSE(colored(automatic, false, {{"CLICOLOR", "1"}}));
  EXPECT_TRUE(colored(automatic, false, {{"CLICOLOR_FORCE", "1"}}));
  EXPECT_TRUE(colored(automatic, false, {{"FORCE_COLOR", "3"}}));
  EXPECT_FALSE(colored(automatic, false, {{"FORCE_COLOR", "0"}}));
  EXPECT_FALSE(colored(automatic, false, {{"FORCE_COLOR", "1"}, {"NO_COLOR", "1"}}));
  EXPECT_TRUE(colored(always, false, {{"NO_COLOR", "1"}}));
  EXPECT_FALSE(colored(never, true, {{"FORCE_COLOR", "1"}}));
}

TEST(Screen, PaintEndsWhereTheTextEnds) { EXPECT_EQ(painted("fp8:", Color::red), "\x1b[1;31mfp8:\x1b[0m"); }

}  // namespace
}  // namespace fp8::commands
