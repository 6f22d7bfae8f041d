// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/text.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <set>

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

}  // namespace
}  // namespace fp8::io
