// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/message.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace fp8::commands {
namespace {

TEST(Message, NamesOfFunctionsAreLeftOut) {
  EXPECT_EQ(without_origin("[models] m/config.json: key 'x'"), "m/config.json: key 'x'");
  EXPECT_EQ(without_origin("--load: [custom op] found"), "--load: found");
  EXPECT_EQ(without_origin("a: [b] c: [d e] f"), "a: c: f");
}

TEST(Message, OtherBracketsStay) {
  for (const char* text : {"shape: [2, 3] found", "[1] x", "[] x", "a [b] c", "[b]c", "[abc", "", "x: [", "[a.b] x",
                           "[te::Linear] expected 2", "[my::op] found", "model.layers[0]: y"})
    EXPECT_EQ(without_origin(text), text);
}

}  // namespace

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

namespace {

TEST(Spelling, FewWrongLettersOrTheBeginningOfOne) {
  const std::vector<std::string> commands = {"measure", "quantize", "evaluate", "generate", "train", "run", "inspect"};
  EXPECT_EQ(meant("quantise", commands), "quantize");
  EXPECT_EQ(meant("quantzie", commands), "quantize");
  EXPECT_EQ(meant("QUANTIZE", commands), "quantize");
  EXPECT_EQ(meant("eval", commands), "evaluate");
  EXPECT_EQ(meant("trian", commands), "train");
  EXPECT_EQ(meant("rnu", commands), "run");
  for (const char* other : {"cpu", "serve", "", "q", "e", "help"}) EXPECT_EQ(meant(other, commands), "") << other;
  EXPECT_EQ(meant(std::string(100000, 'a'), commands), "");
}

TEST(Spelling, DashesDontCount) {
  const std::vector<std::string> options = {"--model", "--dialect", "--measurements", "--help"};
  EXPECT_EQ(meant("--ditalect", options), "--dialect");
  EXPECT_EQ(meant("-model", options), "--model");
  EXPECT_EQ(meant("--measure", options), "--measurements");
  EXPECT_EQ(meant("--keep", options), "");
  EXPECT_EQ(did_you_mean("--modle", options), ", did you mean '--model'?");
  EXPECT_EQ(did_you_mean("--x", options), "");
  EXPECT_EQ(meant("--model", {}), "");
}

}  // namespace
}  // namespace fp8::commands
