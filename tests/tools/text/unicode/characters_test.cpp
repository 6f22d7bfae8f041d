// SPDX-License-Identifier: Apache-2.0
// Normalization forms: UAX #15's own examples and its laws. Random sequences against another implementation are in
// pattern_test.
#include "fp8/tools/text/unicode/characters.h"

#include <utf8proc.h>

#include <random>

#include "fp8/runtime/io/base/text.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

std::string utf8(const std::u32string& text) {
  std::string result;
  for (const char32_t c : text) io::utf8_append(result, c);
  return result;
}

std::string to_nfc(std::string_view text) { return normalized(text, NormalForm::NFC); }

TEST(Nfc, ExamplesOfUax15) {
  const std::vector<std::pair<std::u32string, std::u32string>> examples{
      {U"\u212B", U"\u00C5"},  // singleton
      {U"\u2126", U"\u03A9"},
      {U"A\u030A", U"\u00C5"},             // composition
      {U"\u1E9B\u0323", U"\u1E9B\u0323"},  // figure 6
      {U"\u1E0A\u0323", U"\u1E0C\u0307"},  // table 1: marks change places
      {U"D\u0307\u0323", U"\u1E0C\u0307"},
      {U"\u1E14\u0304", U"\u1E14\u0304"},
      {U"\u0958", U"\u0915\u093C"},        // excluded from composition
      {U"\u0344", U"\u0308\u0301"},        // decomposes into two marks
      {U"\uFB01", U"\uFB01"},              // compatibility only: stays
      {U"\u1100\u1161\u11A8", U"\uAC01"},  // Hangul
      {U"\uAC00\u11A7", U"\uAC00\u11A7"},  // U+11A7 is no trailing letter
      {U"\uAC01\u11A8", U"\uAC01\u11A8"},
      {U"\u1100\uAC00", U"\u1100\uAC00"},
      {U"a\u0300\u0315\u0062", U"\u00E0\u0315\u0062"},
      {U"a\u0315\u0300", U"\u00E0\u0315"},
      {U"a\u0334\u0300", U"\u00E0\u0334"},  // a lower class between does not block
      {U"a\u0301\u0301", U"\u00E1\u0301"},
      {U"\u0301a", U"\u0301a"},
      {U"\u09C7\u0334\u09BE", U"\u09C7\u0334\u09BE"},  // a second starter is blocked by any mark between
      {U"\U0001D15E", U"\U0001D157\U0001D165"},
      {U"\U0002F800", U"\u4E3D"},
      {U"", U""},
      {U"plain \u00FF", U"plain \u00FF"}};
  for (const auto& [in, out] : examples)
    EXPECT_EQ(to_nfc(utf8(in)), utf8(out)) << io::Json(utf8(in)).dump(-1, ' ', true);
}

TEST(Nfc, IsIdempotentAndLocalToStarters) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::u32string text;
    for (int i = 0; i < 6; ++i) {
      const char32_t c = random() % 3 == 0   ? 0x300 + random() % 0x50
                         : random() % 2 == 0 ? 'A' + random() % 60
                                             : random() % 0x30000;
      if (c < 0xD800 || c >= 0xE000) text += c;
    }
    const std::string once = to_nfc(utf8(text));
    ASSERT_EQ(to_nfc(once), once);
    ASSERT_EQ(to_nfc(utf8(text) + " " + utf8(text)), once + " " + once);
  }
}

// Figure 6 of UAX #15: each of four letters in the four forms.
TEST(NormalForms, FigureSixOfUax15) {
  struct Row {
    std::u32string source, nfd, nfc, nfkd, nfkc;
  };
  const std::vector<Row> rows{{U"\uFB01", U"\uFB01", U"\uFB01", U"fi", U"fi"},
                              {U"2\u2075", U"2\u2075", U"2\u2075", U"25", U"25"},
                              {U"\u1E9B\u0323", U"\u017F\u0323\u0307", U"\u1E9B\u0323", U"s\u0323\u0307", U"\u1E69"},
                              {U"\uAC01", U"\u1100\u1161\u11A8", U"\uAC01", U"\u1100\u1161\u11A8", U"\uAC01"}};
  for (const Row& row : rows) {
    EXPECT_EQ(normalized(utf8(row.source), NormalForm::NFD), utf8(row.nfd));
    EXPECT_EQ(normalized(utf8(row.source), NormalForm::NFC), utf8(row.nfc));
    EXPECT_EQ(normalized(utf8(row.source), NormalForm::NFKD), utf8(row.nfkd));
    EXPECT_EQ(normalized(utf8(row.source), NormalForm::NFKC), utf8(row.nfkc));
  }
}

TEST(Nfc, LongRunsOfMarks) {
  std::u32string text = U"a";
  for (int i = 0; i < 300000; ++i) text += i % 2 ? U'\u0323' : U'\u0315';
  EXPECT_EQ(to_nfc(utf8(text)).substr(0, 3), utf8(U"\u1EA1"));
}

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
