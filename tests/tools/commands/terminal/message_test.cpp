// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/message.h"

#include <gtest/gtest.h>

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
}  // namespace fp8::commands
