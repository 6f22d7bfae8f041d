// SPDX-License-Identifier: Apache-2.0
// Costs of tokenizers that users download: time grows with the text and with the files, not with their product. Each of
// the texts here would take minutes otherwise.

#include <tuple>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/steps/vocabulary.h"
#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;
using Ids = std::vector<std::int64_t>;

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
  EXPECT_THAT(test::one_line_error<io::Error>([&] { Tokenizer(json, "t").encode(repeated("ax", 100'000)); }),
              HasSubstr("makes too long a text"));
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
  EXPECT_THAT(test::one_line_error<io::Error>([&] { Tokenizer tokenizer(folder.path()); }),
              HasSubstr("model.ranks has too many long tokens"));
}

}  // namespace
}  // namespace fp8::text
