// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/file.h"
#include "support/throws_with.h"

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

TEST(Message, HoldsEachValueAtItsPlace) {
  const std::string text = "{}";
  EXPECT_EQ(message("{}: found {}, allowed: {}", "a.json", text, std::string_view("1, 2")),
            "a.json: found {}, allowed: 1, 2");
  EXPECT_EQ(message("{}{}{}{}", 'c', std::int8_t{-3}, ~std::uint64_t{0}, 0.5f), "c-3184467440737095516150.500000");
  EXPECT_EQ(message("{.quant = false} of {}", std::filesystem::path("a/b")), "{.quant = false} of a/b");
  EXPECT_EQ(message("as it is"), "as it is");
}

TEST(Message, IsWhatAnErrorCarries) {
  using test::error_of;
  EXPECT_EQ(error_of<Error>([] { fail<Error>("found {}", 3); }), "found 3");
  EXPECT_EQ(error_of<std::invalid_argument>([] { fail<std::invalid_argument>("rank is {}", 3); }), "rank is 3");
  EXPECT_EQ(error_of<Error>([] { fail(std::filesystem::path("a\nb"), "{} bytes", 3); }), "a\\x0ab: 3 bytes");
  EXPECT_EQ(error_of<Error>([] { fail_at("key 'a'", "{} bytes", 3); }), "key 'a': 3 bytes");
}

}  // namespace
}  // namespace fp8::io
