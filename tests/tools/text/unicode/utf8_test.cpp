// SPDX-License-Identifier: Apache-2.0
#include <utf8proc.h>

#include <vector>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/unicode/characters.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

TEST(Utf8, EveryCodePointComesBackFromBothSides) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "a";
    io::utf8_append(text, c);
    ASSERT_EQ(sanitize(text), text);
    const CodePoint forward = decode_at(text, 1), backward = decode_before(text, text.size());
    ASSERT_EQ(forward.value, c);
    ASSERT_EQ(backward.value, c);
    ASSERT_EQ(forward.size, text.size() - 1);
    ASSERT_EQ(backward.size, text.size() - 1);
  }
}

TEST(Utf8, DrawnIsWhatNoControlFormatOrSeparatorIs) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool drawn = category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF &&
                       category != UTF8PROC_CATEGORY_ZL && category != UTF8PROC_CATEGORY_ZP;
    ASSERT_EQ(io::is_drawn(c), drawn) << std::hex << c;
  }
}

// Python: bytes.decode("utf8", errors="replace").
TEST(Utf8, IllFormedSubpartsBecomeReplacementCharacters) {
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases{{"\x80", r},
                                                               {"\xff\xfe", r + r},
                                                               {"\xc0\x80", r + r},
                                                               {"\xc3", r},
                                                               {"\xc3(", r + "("},
                                                               {"\xe2\x82", r},
                                                               {"\xe2\x82z", r + "z"},
                                                               {"\xed\xa0\x80", r + r + r},
                                                               {"\xf0\x9f\x98", r},
                                                               {"\xf0\x80\x80\x80", r + r + r + r},
                                                               {"\xf4\x90\x80\x80", r + r + r + r},
                                                               {"\xf0\x9f\x98\x80\x80", "\xf0\x9f\x98\x80" + r},
                                                               {"a\xe0\x80"
                                                                "b",
                                                                "a" + r + r + "b"},
                                                               {std::string("\0", 1), std::string("\0", 1)}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(sanitize(bytes), text) << io::printable(bytes);
}

// GPT-2's bytes_to_unicode(): printable Latin-1 stands for itself, the others for U+0100 and up.
TEST(ByteAlphabet, KnownLetters) {
  const auto letters = [](std::string_view bytes) {
    std::string text;
    append_byte_letters(text, bytes);
    return text;
  };
  EXPECT_EQ(letters(" a\n"),
            "\xC4\xA0"
            "a\xC4\x8A");  // U+0120 a U+010A
  EXPECT_EQ(letters(std::string_view("\0\x7f\x80\xa0\xad\xff", 6)), "\xC4\x80\xC4\xA1\xC4\xA2\xC5\x82\xC5\x83\xC3\xBF");
}

TEST(ByteAlphabet, EachByteHasOneLetter) {
  int known = 0;
  for (std::uint32_t c = 0; c < 0x1000; ++c) {
    const int byte = byte_of_letter(c);
    if (byte < 0) continue;
    ++known;
    std::string letter, expected;
    append_byte_letters(letter, std::string(1, static_cast<char>(byte)));
    io::utf8_append(expected, c);
    EXPECT_EQ(letter, expected);
  }
  EXPECT_EQ(known, 256);
  EXPECT_EQ(byte_of_letter(0x10FFFF), -1);
}

}  // namespace
}  // namespace fp8::text
