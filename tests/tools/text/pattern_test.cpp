// SPDX-License-Identifier: Apache-2.0
// Patterns: what is accepted, what is refused, how matches are walked. That accepted ones cut as Hugging Face's do is
// below.

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/tokenizer.h"
#include "fp8/tools/text/unicode/characters.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

const testing::Source& source() {
  static const testing::Source instance("{}");
  return instance;
}

Pattern regex(const std::string& expression) { return Pattern::regex(expression, source().part()); }

std::string shown(const Pattern& pattern, std::string_view text) {  // matches in [], the rest bare, split by |
  std::string result;
  for (const Stretch& stretch : pattern.split(text)) {
    const std::string piece(text.substr(stretch.begin, stretch.end - stretch.begin));
    result += (result.empty() ? "" : "|") + (stretch.match ? "[" + piece + "]" : piece);
  }
  return result;
}

TEST(Pattern, SplitCoversTheText) {
  EXPECT_EQ(shown(regex("b+"), "abbcb"), "a|[bb]|c|[b]");
  EXPECT_EQ(shown(regex("b+"), "xyz"), "xyz");
  EXPECT_EQ(shown(regex("b+"), ""), "");
  EXPECT_EQ(shown(Pattern::literal("bb"), "abbbb"), "a|[bb]|[bb]");
  EXPECT_EQ(shown(regex("x*"), "axb"), "[]|a|[x]|b|[]");
  EXPECT_EQ(shown(regex("(?=b)"),
                  "a\xC3\xA9"
                  "b"),
            "a\xC3\xA9|[]|b");
}

TEST(Pattern, Replace) {
  EXPECT_EQ(regex("b+").replace("abbcb", "-", 4), "a-c-");
  EXPECT_EQ(Pattern::literal("b").replace("abbcb", "", 2), "ac");
  EXPECT_EQ(Pattern::literal(" ").replace("", "x", 0), "");
}

// `\s` is White_Space: every code point of the property, and no other (U+180E and U+200B are none).
TEST(Pattern, SpaceIsWhiteSpace) {
  const Pattern space = regex(R"(\s)"), other = regex(R"(\S)"), in_set = regex(R"([x\s])");
  for (std::uint32_t c = 0; c < 0x11000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    io::utf8_append(text, c);
    ASSERT_EQ(space.found_in(text), is_white_space(c)) << std::hex << c;
    ASSERT_EQ(other.found_in(text), !is_white_space(c)) << std::hex << c;
    ASSERT_EQ(in_set.found_in(text), is_white_space(c) || c == 'x') << std::hex << c;
  }
}

TEST(Pattern, WordHasMarksDigitsAndConnectors) {
  const Pattern word = regex(R"(^\w$)");
  for (const char* const yes : {"a", "Z", "5", "_", "\xC3\xA9", "\xCC\x81", "\xE2\x80\xBF", "\xE4\xB8\x80", "\xD9\xA3",
                                "\xE2\x85\xA3", "\xE2\x92\xB6"})
    EXPECT_TRUE(word.found_in(yes)) << yes;
  for (const char* const no : {" ", "-", "\xE2\x85\x93", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "'"})
    EXPECT_FALSE(word.found_in(no)) << no;
}

// As Oniguruma does (seen in tokenizers 0.23): U+00BD is a word character outside [...] only, U+2153 never.
TEST(Pattern, Latin1Fractions) {
  EXPECT_TRUE(regex(R"(\w)").found_in("\xC2\xBD"));
  EXPECT_FALSE(regex(R"(\W)").found_in("\xC2\xBD"));
  EXPECT_FALSE(regex(R"([\w])").found_in("\xC2\xBD"));
  EXPECT_FALSE(regex(R"(\w)").found_in("\xE2\x85\x93"));
}

TEST(Pattern, LinesAreMetByAnchors) { EXPECT_EQ(shown(regex("^b|b$"), "b\nb b"), "[b]|\n|[b]| |[b]"); }

TEST(Pattern, WhatMeansAnotherThingIsRefused) {
  for (const char* const expression :
       {R"(\h+)", R"(\R)", R"(\X)", R"(\K)", R"([a\S])", R"([\W])", "[a&&b]", "[a[^bc]]", "[a-[bc]]", "[a[b[c]]]",
        "[a[[:alpha:]]]", "a{1,2}+", "(?m:a)", "(?x) a", "(?<n>a)", "(?P<n>a)", "(*UCP)a", R"(\Qa\E)", R"(\C)"}) {
    EXPECT_THAT(test::one_line_error<io::Error>([&] { regex(expression); }),
                AllOf(HasSubstr("test.json: part has "), HasSubstr("not supported")))
        << expression;
  }
  for (const char* const expression : {"(", "[", "a)", "*", "\\", "\\p{Nothing}", "[b-a]"}) {
    EXPECT_THAT(test::one_line_error<io::Error>([&] { regex(expression); }), HasSubstr("is not a regular expression"))
        << expression;
  }
  EXPECT_THAT(test::one_line_error<io::Error>([&] { regex(std::string(70000, 'a')); }), HasSubstr("70000 bytes"));
  for (const char* const expression :
       {kGpt2Pattern, R"((?i:'s)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}|(?>a)|(?<!b)c|\x{e9}|\p{Han})", R"([\]\[^-])",
        "[]a]"}) {
    EXPECT_NO_THROW(regex(expression)) << expression;
  }
}

// Runaway backtracking ends in an error after PCRE2's limit, not in hours.
TEST(Pattern, CatastrophicBacktrackingEnds) {
  const Pattern pattern = regex("(a+)+$");
  EXPECT_THAT(test::one_line_error<io::Error>([&] { pattern.split(std::string(60, 'a') + "b"); }),
              HasSubstr("can't be matched"));
}

TEST(Pattern, LongRunsAreLinear) {
  const Pattern pattern = regex(R"(\s*[\r\n]+|\s+(?!\S)|\s+)");
  EXPECT_EQ(pattern.split(std::string(2 << 20, ' ') + "x").size(), 3u);
}

TEST(Pattern, FromJson) {
  EXPECT_EQ(shown(Pattern::from_json(testing::Source(R"({"String":"b."})").part()), "b.bb"), "[b.]|bb");
  EXPECT_EQ(shown(Pattern::from_json(testing::Source(R"({"Regex":"b."})").part()), "b.bb"), "[b.]|[bb]");
  for (const char* const json :
       {"{}", R"({"String":"a","Regex":"b"})", R"({"String":""})", R"({"String":1})", R"("a")"}) {
    EXPECT_THAT(test::one_line_error<io::Error>([&] { Pattern::from_json(testing::Source(json).part()); }),
                HasSubstr("test.json: part"))
        << json;
  }
}

// Single steps (normalizers, pre-tokenizers, decoders) and small tokenizers with unusual settings, against what Hugging
// Face's tokenizers makes of the same input (fixtures/steps.json, written by make_step_fixtures.py).

using Strings = std::vector<std::string>;

const io::Json& steps() {
  static const io::Json json = io::read_json(testing::fixtures() / "steps.json");
  return json;
}

Strings texts() { return steps().at("texts").get<Strings>(); }

TEST(Steps, PreTokenizersCutAsHuggingFace) {
  ASSERT_GT(steps().at("pre_tokenizers").size(), 39u);
  for (const auto& entry : steps().at("pre_tokenizers")) {
    const PreTokenizer pre_tokenizer = make_pre_tokenizer(JsonPart(entry[0], "steps.json", "pre_tokenizer"));
    const Strings inputs = texts();
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      Strings words;
      pre_tokenizer(inputs[n], true, [&](std::string_view word, bool) {
        words.emplace_back(word);
        return true;
      });
      EXPECT_EQ(words, entry[1].at(n).get<Strings>()) << entry[0] << " on " << io::Json(inputs[n]);
    }
  }
}

TEST(Steps, APreTokenizerStopsWhenTold) {
  for (const auto& entry : steps().at("pre_tokenizers")) {
    const PreTokenizer pre_tokenizer = make_pre_tokenizer(JsonPart(entry[0], "steps.json", "pre_tokenizer"));
    int words = 0;
    EXPECT_FALSE(pre_tokenizer("one two 34 five", true, [&](std::string_view, bool) { return ++words < 1; }))
        << entry[0];
    EXPECT_EQ(words, 1) << entry[0];
  }
}

TEST(Steps, NormalizersWriteAsHuggingFace) {
  ASSERT_GE(steps().at("normalizers").size(), 22u);
  for (const auto& entry : steps().at("normalizers")) {
    const Normalizer normalizer = make_normalizer(JsonPart(entry[0], "steps.json", "normalizer"));
    Strings inputs = texts();
    if (entry[1].size() > inputs.size()) {  // the normalization forms
      for (const auto& text : steps().at("mark_texts")) inputs.push_back(text);
    }
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      EXPECT_EQ(normalizer(inputs[n]), entry[1].at(n).get<std::string>())
          << entry[0] << " on " << io::Json(inputs[n]).dump(-1, ' ', true);
    }
  }
}

TEST(Steps, DecodersReadAsHuggingFace) {
  const auto inputs = steps().at("token_lists").get<std::vector<Strings>>();
  ASSERT_GE(steps().at("decoders").size(), 13u);
  for (const auto& entry : steps().at("decoders")) {
    const Decoder decoder = make_decoder(JsonPart(entry[0], "steps.json", "decoder"));
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      std::string text;
      for (const std::string& piece : decoder(inputs[n])) text += piece;
      EXPECT_EQ(text, entry[1].at(n).get<std::string>()) << entry[0] << " on " << io::Json(inputs[n]);
    }
  }
}

TEST(Steps, SmallTokenizersEncodeAsHuggingFace) {
  ASSERT_GE(steps().at("tokenizers").size(), 13u);
  int number = 0;
  for (const auto& entry : steps().at("tokenizers")) {
    const testing::Folder folder;
    folder.write("tokenizer.json", entry[0].dump());
    const Tokenizer tokenizer(folder.path());
    const Strings inputs = texts();
    ASSERT_GE(entry[1].size(), 20u);
    for (std::size_t n = 0; n < entry[1].size(); ++n) {
      EXPECT_EQ(tokenizer.encode(inputs[n]), entry[1].at(n).get<std::vector<std::int64_t>>())
          << "tokenizer " << number << " on " << io::Json(inputs[n]);
    }
    ++number;
  }
}

}  // namespace
}  // namespace fp8::text
