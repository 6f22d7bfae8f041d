// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {
namespace {

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(printable("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "gr\xc3\xb6\xc3\x9f"
            "e");
  EXPECT_EQ(printable(std::string_view("a\nb\0\x7f\xff", 6)), "a\\x0ab\\x00\\x7f\\xff");
}

TEST(Printable, EscapesWhatIsNotDrawn) {
  EXPECT_EQ(printable("a\xC2\x9B"
                      "b"),
            "a\\u009bb");                                         // CSI of C1
  EXPECT_EQ(printable("lm_head\xE2\x80\x8B"), "lm_head\\u200b");  // no width: it would look like lm_head
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "abc"),
            "\\u202eabc");  // right to left
  EXPECT_EQ(printable("a\xE2\x80\xA8"
                      "b"),
            "a\\u2028b");                                      // another line
  EXPECT_EQ(printable("\xF3\xA0\x80\x81"), "\\udb40\\udc01");  // a tag
}

TEST(Printable, IsBoundedAndEndsBetweenCharacters) {
  EXPECT_EQ(printable(std::string(500, 'x'), 10), "xxxxxxxxxx...");
  EXPECT_EQ(printable("\xc3\xb6\xc3\xb6\xc3\xb6", 3), "\xc3\xb6\xc3\xb6...");
}

TEST(Printable, InQuotes) { EXPECT_EQ(in_quotes("mode"), "'mode'"); }

}  // namespace
}  // namespace fp8::io
