// SPDX-License-Identifier: Apache-2.0
// Patterns: what is accepted, what is refused, how matches are walked. That accepted ones cut as Hugging Face's do is
// below.
#include <utf8proc.h>

#include <random>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Ids = std::vector<std::int64_t>;

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
        "[a[[:alpha:]]]", "a{1,2}+", "(?m:a)", "(?x) a", "(?<n>a)", "(?P<n>a)", "(*UCP)a", R"(\Qa\E)", R"(\C)"})
    EXPECT_IO_ERROR(regex(expression), "test.json: part has ", "not supported") << expression;
  for (const char* const expression : {"(", "[", "a)", "*", "\\", "\\p{Nothing}", "[b-a]"})
    EXPECT_IO_ERROR(regex(expression), "is not a regular expression") << expression;
  EXPECT_IO_ERROR(regex(std::string(70000, 'a')), "70000 bytes");
  for (const char* const expression :
       {kGpt2Pattern, R"((?i:'s)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}|(?>a)|(?<!b)c|\x{e9}|\p{Han})", R"([\]\[^-])",
        "[]a]"})
    EXPECT_NO_THROW(regex(expression)) << expression;
}

// Runaway backtracking ends in an error after PCRE2's limit, not in hours.
TEST(Pattern, CatastrophicBacktrackingEnds) {
  const Pattern pattern = regex("(a+)+$");
  EXPECT_IO_ERROR(pattern.split(std::string(60, 'a') + "b"), "can't be matched");
}

TEST(Pattern, LongRunsAreLinear) {
  EXPECT_EQ(regex(R"(\s*[\r\n]+|\s+(?!\S)|\s+)").split(std::string(2 << 20, ' ') + "x").size(), 3u);
}

TEST(Pattern, FromJson) {
  EXPECT_EQ(shown(Pattern::from_json(testing::Source(R"({"String":"b."})").part()), "b.bb"), "[b.]|bb");
  EXPECT_EQ(shown(Pattern::from_json(testing::Source(R"({"Regex":"b."})").part()), "b.bb"), "[b.]|[bb]");
  for (const char* const json :
       {"{}", R"({"String":"a","Regex":"b"})", R"({"String":""})", R"({"String":1})", R"("a")"})
    EXPECT_IO_ERROR(Pattern::from_json(testing::Source(json).part()), "test.json: part") << json;
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
    for (std::size_t n = 0; n < inputs.size(); ++n)
      EXPECT_EQ(normalizer(inputs[n]), entry[1].at(n).get<std::string>())
          << entry[0] << " on " << io::Json(inputs[n]).dump(-1, ' ', true);
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
    for (std::size_t n = 0; n < entry[1].size(); ++n)
      EXPECT_EQ(tokenizer.encode(inputs[n]), entry[1].at(n).get<std::vector<std::int64_t>>())
          << "tokenizer " << number << " on " << io::Json(inputs[n]);
    ++number;
  }
}

// Costs of tokenizers that users download: time grows with the text and with the files, not with their product. Each of
// the texts here would take minutes otherwise.

std::string repeated(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

io::Json bpe() { return {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", io::Json::array()}}; }

TEST(TokenizerCost, LongPartsAreNamed) {
  const std::string longer(257, 'a'), much(1 << 17, 'a');
  const auto with = [](io::Json json, const char* key, io::Json value) {
    json[key] = std::move(value);
    return json;
  };
  io::Json single = io::Json::array({{{"Sequence", {{"id", "A"}}}}}), ids = io::Json::array();
  for (int i = 0; i < 600; ++i) ids.push_back(0);
  for (int i = 0; i < 2; ++i) single.push_back({{"SpecialToken", {{"id", "s"}}}});
  const io::Json special = {{"s", {{"id", "s"}, {"ids", ids}, {"tokens", {"s"}}}}};
  const std::vector<std::pair<io::Json, std::string>> cases = {
      {{{"model", {{"type", "Unigram"}, {"vocab", io::Json::array({{"a", -1}, {longer, -2}})}}}},
       "t: model.vocab has a token of 257 bytes, allowed 256"},
      {{{"model", {{"type", "WordPiece"}, {"unk_token", "a"}, {"vocab", {{"a", 0}, {longer, 1}}}}}},
       "t: model.vocab has a token of 257 bytes, allowed 256"},
      {{{"model", with(bpe(), "vocab", {{much, 0}})}}, "t: model.vocab has a token of 131072 bytes, allowed 65536"},
      {{{"model", with(bpe(), "continuing_subword_prefix", much)}},
       "t: model.continuing_subword_prefix has 131072 bytes, allowed 64"},
      {{{"model", with(bpe(), "end_of_word_suffix", much)}},
       "t: model.end_of_word_suffix has 131072 bytes, allowed 64"},
      {{{"model", bpe()},
        {"post_processor", {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}}}},
       "t: post_processor.single has 1200 ids, allowed 1024"},
      {{{"model", bpe()},
        {"normalizer",
         {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(std::string("\4\0\0\0\0\0\0\0", 8) + longer)}}}},
       "t: normalizer.precompiled_charsmap has a rule of 257 bytes, allowed 256"}};
  for (const auto& [json, message] : cases)
    EXPECT_EQ(test::one_line_error<io::Error>([&] { Tokenizer(json, "t"); }), message);
}

TEST(TokenizerCost, AWalkFindsAnyChild) {
  std::vector<std::string> words;
  for (int first : {'a', 'b'})
    for (int c = 0; c < 256; c += first == 'a' ? 1 : 5)
      words.push_back({static_cast<char>(first), static_cast<char>(c)});
  PrefixTrie::Entries entries;
  for (std::size_t i = 0; i < words.size(); ++i) entries.emplace_back(words[i], static_cast<std::int32_t>(i));
  const io::Json none;
  const PrefixTrie trie(JsonPart(none, "t"), entries);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto found = trie.longest(words[i] + "x");
    EXPECT_EQ(std::pair(found.size, found.value), std::pair(std::size_t{2}, static_cast<std::int32_t>(i)));
  }
  EXPECT_EQ(trie.longest(std::string("b\1")).size, 0u);
}

TEST(TokenizerCost, AddedTokensThatTakeSpacesAlong) {
  for (const char* const side : {"lstrip", "rstrip"}) {
    io::Json json = {{"model", bpe()}, {"added_tokens", {{{"id", 2}, {"content", " "}, {side, true}}}}};
    EXPECT_EQ(Tokenizer(json, "t").encode(repeated(" ", 1 << 20) + "a" + repeated(" ", 1 << 20)).size(), (2u << 20) + 1)
        << side;
  }
}

TEST(TokenizerCost, ALongPatternIsSearchedOnce) {
  const io::Json json = {
      {"type", "Replace"}, {"pattern", {{"String", std::string(1 << 20, 'a') + "b"}}}, {"content", "c"}};
  const Normalizer normalizer = make_normalizer(JsonPart(json, "t", "normalizer"));
  const std::string text(3 << 20, 'a');
  EXPECT_EQ(normalizer(text), text);
  EXPECT_EQ(normalizer(text + "b"), std::string(2 << 20, 'a') + "c");
}

TEST(TokenizerCost, EachPieceOfATextMayGrowByItsSize) {
  const auto replace = [](const char* from, const std::string& to) -> io::Json {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const io::Json json = {
      {"model", bpe()},
      {"added_tokens", {{{"id", 2}, {"content", "x"}, {"normalized", false}}}},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {replace("a", std::string(1 << 20, 'b')), replace("b", "")}}}}};
  EXPECT_IO_ERROR(Tokenizer(json, "t").encode(repeated("ax", 100'000)), "makes too long a text");
}

// A double array whose one edge, by 'a', leads back to its root.
TEST(TokenizerCost, ATableOfRulesThatLeadsInACircle) {
  std::string table(4 * 0x62, '\0');
  const std::uint32_t unit = 0x61u << 10 | 0x61u;
  for (int i = 0; i < 4; ++i) table[4 * 0x61 + i] = static_cast<char>(unit >> (8 * i));
  const std::string size = {static_cast<char>(table.size() & 0xFF), static_cast<char>(table.size() >> 8), 0, 0};
  const io::Json json = {{"type", "SentencePiece"},
                         {"add_dummy_prefix", false},
                         {"precompiled_charsmap", to_base64(size + table + std::string(1, '\0'))}};
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(make_normalizer(JsonPart(json, "t", "normalizer"))(text), text);
}

TEST(TokenizerCost, ADecoderRewritesATextOnce) {
  const io::Json json = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "Fuse"}}, {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}}};
  const auto texts = make_decoder(JsonPart(json, "t", "decoder"))(std::vector<std::string>(2 << 20, "a ."));
  EXPECT_EQ(texts, std::vector<std::string>{repeated("a.", 2 << 20)});
}

TEST(TokenizerCost, FilesWithManyTokens) {
  constexpr int kMany = 100'000;
  const Folder folder;
  std::string lines = "[UNK]\n[CLS]\n[SEP]\n";
  io::Json added = io::Json::object(), special = io::Json::array();
  auto& all = added.get_ref<io::Json::object_t&>();
  for (int i = 0; i < kMany; ++i) {
    lines += "t" + std::to_string(i) + "\n";
    all.push_back({"a" + std::to_string(i), kMany + 3 + i});
    special.push_back("t" + std::to_string(kMany - 1 - i));
  }
  folder.write("vocab.txt", lines);
  folder.write("added_tokens.json", added.dump());
  folder.write("tokenizer_config.json", io::Json{{"additional_special_tokens", special}}.dump());
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("a99999 t7", false), (Ids{2 * kMany + 2, 10}));
}

TEST(TokenizerCost, RanksOfManyLongTokens) {
  const Folder folder;
  std::string lines = to_base64("a") + " 0\n";
  for (int i = 1; i < 1100; ++i)
    lines += to_base64(std::to_string(10'000 + i) + std::string(1019, 'a')) + " " + std::to_string(i) + "\n";
  folder.write("x.tiktoken", lines);
  EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "model.ranks has too many long tokens");
}

// Normalization forms: UAX #15's own examples and its laws. Random sequences against another implementation are in
// pattern_test.

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
