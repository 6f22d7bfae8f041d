// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/spelling.h"

#include <gtest/gtest.h>

namespace fp8::commands {
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
