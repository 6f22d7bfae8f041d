// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/text.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <set>
#include <vector>

namespace fp8::io {
namespace {

using Words = std::vector<std::string>;

TEST(Joined, PutsASeparatorBetweenWords) {
  EXPECT_EQ(joined(Words{}), "");
  EXPECT_EQ(joined(Words{"tensor"}), "tensor");
  EXPECT_EQ(joined(Words{"tensor", "channel", "block"}), "tensor, channel, block");
  EXPECT_EQ(joined(Words{"a", "b"}, " or "), "a or b");
}

TEST(Joined, EmptyWordsKeepTheirPlace) { EXPECT_EQ(joined(Words{"", "b", ""}), ", b, "); }

TEST(Joined, TakesAnyRange) {
  const std::initializer_list<const char*> literals = {"SCALAR", "CONST"};
  EXPECT_EQ(joined(literals), "SCALAR, CONST");
  EXPECT_EQ(joined(std::set<std::string_view>{"b", "a"}), "a, b");
  EXPECT_EQ(joined(std::vector<std::int64_t>{-1, 0, 12}), "-1, 0, 12");
  struct Row {
    const char* name;
    int bytes;
  };
  constexpr Row kRows[] = {{"BF16", 2}, {"F32", 4}, {"F64", 8}};
  EXPECT_EQ(joined(kRows | std::views::transform(&Row::name)), "BF16, F32, F64");
  const auto large = [](const Row& row) { return row.bytes > 2; };
  EXPECT_EQ(joined(kRows | std::views::filter(large) | std::views::transform(&Row::bytes)), "4, 8");
}

TEST(Joined, OfTheFirstEndsInDotsWhereMoreFollow) {
  EXPECT_EQ(joined_first({"a", "b", "c"}, 2), "a, b, ...");
  EXPECT_EQ(joined_first({"a", "b"}, 2), "a, b");
  EXPECT_EQ(joined_first({}, 2), "");
}

TEST(ShellWord, IsInSingleQuotes) {
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b$c"), "'a b$c'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
  EXPECT_EQ(shell_word("it's", R"(\')"), R"('it\'s')");
}

TEST(ShapeText, IsAListInBrackets) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({2, 0, 3}), "[2, 0, 3]");
}

TEST(IsName, TakesLettersDigitsAndTheOthersNamed) {
  EXPECT_TRUE(is_name("kv_cache", "_"));
  EXPECT_TRUE(is_name("2by4", ""));
  EXPECT_FALSE(is_name("", "_"));
  EXPECT_FALSE(is_name("a-b", "_"));
  EXPECT_FALSE(is_name("Max", ""));
  EXPECT_FALSE(is_name("\xC3\xA4", ""));
}

TEST(IsFileName, TakesNothingThatLeadsElsewhere) {
  for (const char* name : {"a", "a.b", "..a", "a..", "{epoch}-{step}", "\xC3\xA4"})
    EXPECT_TRUE(is_file_name(name)) << name;
  for (const char* name : {"", ".", "..", "/", "a/b", "../a", "/a", "a/", "a\\b"})
    EXPECT_FALSE(is_file_name(name)) << name;
  EXPECT_FALSE(is_file_name(std::string_view("a\0b", 3)));
}

TEST(Case, IsThatOfAsciiLettersAlone) {
  EXPECT_EQ(lower("MaxAbs_HW 2 \xC3\x84@[`{"), "maxabs_hw 2 \xC3\x84@[`{");
  EXPECT_EQ(upper("MaxAbs_HW 2 \xC3\xA4@[`{"), "MAXABS_HW 2 \xC3\xA4@[`{");
}

// RFC 3629's definition the long way round: every code point has exactly one encoding, by its number of bits.
std::string encode(std::uint32_t code) {
  std::string out;
  const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const std::uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(lead[extra] + code / (1u << (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) out += static_cast<char>(0x80 + code / (1u << (6 * i)) % 64);
  return out;
}

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = encode(code);
    std::string ours;
    utf8_append(ours, code);
    ASSERT_EQ(ours, text) << code;
    ASSERT_EQ(utf8_length(text, 0), text.size()) << code;
    ASSERT_EQ(utf8_decode(text, 0, text.size()), code);
  }
}

TEST(Utf8, NothingElseOfUpToThreeBytesIsValid) {
  std::vector<bool> valid(1 << 24, false);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::uint32_t key = 0;
    const std::string text = encode(code);
    for (const char c : text) key = key << 8 | static_cast<unsigned char>(c);
    if (text.size() == 3) valid[key] = true;
  }
  for (std::uint32_t key = 0; key < 1 << 24; ++key) {
    const std::string text = {static_cast<char>(key >> 16), static_cast<char>(key >> 8), static_cast<char>(key)};
    ASSERT_EQ(utf8_length(text, 0) == 3, valid[key]) << std::hex << key;
  }
}

TEST(Utf8, Refuses) {
  const char* bad[] = {"\x80",
                       "\xc0\x80",
                       "\xc1\xbf",
                       "\xe0\x80\x80",
                       "\xed\xa0\x80",
                       "\xf0\x80\x80\x80",
                       "\xf4\x90\x80\x80",
                       "\xf5\x80\x80\x80",
                       "\xff",
                       "\xc3",
                       "\xe2\x82",
                       "\xf0\x9f\x98"};
  for (const char* text : bad) EXPECT_FALSE(is_utf8(text));
  EXPECT_TRUE(
      is_utf8("gr\xc3\xb6\xc3\x9f"
              "e \xf0\x9f\x98\x80"));
}

}  // namespace
}  // namespace fp8::io
