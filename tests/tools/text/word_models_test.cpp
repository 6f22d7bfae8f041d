// SPDX-License-Identifier: Apache-2.0
// WordPiece, Unigram, WordLevel and the table of rules: what their parts of a tokenizer.json may say. That they give
// the right ids: kinds_test.
#include <gmock/gmock.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

// The limits of what a file may say: message, and no crash.
TEST(WordModels, RefusedParts) {
  const std::vector<std::pair<const char*, const char*>> models{
      {R"({"type":"Unigram","vocab":[]})", "model.vocab has 0 tokens"},
      {R"({"type":"Unigram","vocab":[["a"]]})", "model.vocab has at index 0"},
      {R"({"type":"Unigram","vocab":[["a",1e999]]})", "tokenizer.json"},
      {R"({"type":"Unigram","vocab":[["a",-1]],"unk_id":1})", "model.unk_id is 1"},
      {R"({"type":"WordPiece","vocab":{"[UNK]":0},"max_input_chars_per_word":-1})", "max_input_chars_per_word is -1"},
      {R"({"type":"WordLevel","vocab":{"a":0}})", "names the token '<unk>'"}};
  Folder folder;
  for (const auto& [model, message] : models) {
    folder.write("tokenizer.json", std::string(R"({"model":)") + model + "}");
    EXPECT_THAT(test::one_line_error<io::Error>([&] { Tokenizer tokenizer(folder.path()); }), HasSubstr(message))
        << model;
  }
  for (const char* const table : {"", "AA", "AAAA", "!!!!", "/////w==", "BAAAAA==", "AQAAAAA="}) {
    const std::string normalizer = std::string(R"({"type":"Precompiled","precompiled_charsmap":")") + table + "\"}";
    folder.write("tokenizer.json",
                 R"({"model":{"type":"Unigram","vocab":[["a",-1]]},"normalizer":)" + normalizer + "}");
    EXPECT_THAT(test::one_line_error<io::Error>([&] { Tokenizer tokenizer(folder.path()); }),
                HasSubstr("precompiled_charsmap"))
        << table;
  }
}

// Random units: every walk ends within the array.
TEST(WordModels, ADamagedTableOfRulesDoesNoHarm) {
  std::mt19937 random(11);
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Folder folder;
  for (int round = 0; round < 200; ++round) {
    std::string table = "QAAA";  // 64 bytes of trie
    while (table.size() < 100) table.push_back(kLetters[random() % (round % 2 ? 64 : 8)]);
    const std::string normalizer = R"({"type":"Precompiled","precompiled_charsmap":")" + table + "\"}";
    folder.write("tokenizer.json",
                 R"({"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":0},"normalizer":)" + normalizer + "}");
    try {
      const Tokenizer tokenizer(folder.path());
      for (int byte = 1; byte < 128; ++byte) tokenizer.encode(std::string(3, static_cast<char>(byte)));
    } catch (const io::Error&) {  // strings that are not UTF-8
    }
  }
}

TEST(WordModels, AUnigramWithoutUnknownTokenSaysWhatItLacks) {
  Folder folder;
  folder.write("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":null}})");
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("aa"), (Ids{0, 0}));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { tokenizer.encode("ab"); }), HasSubstr("no token for 'b'"));
}

// Longest tokens first, from the left; what then can't go on makes the whole word unknown.
TEST(WordModels, WordPieceIsGreedy) {
  const Folder folder;
  folder.write("tokenizer.json", R"({"model":{"type":"WordPiece","max_input_chars_per_word":8,
    "vocab":{"[UNK]":0,"a":1,"ab":2,"##b":3,"##bc":4,"##c":5,"##d":6,"\u00e9":7,"##\u00e9":8}}})");
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("abcd"), (Ids{2, 5, 6}));
  EXPECT_EQ(tokenizer.encode("abbcd"), (Ids{2, 4, 6}));
  EXPECT_EQ(tokenizer.encode("abx"), (Ids{0}));
  EXPECT_EQ(tokenizer.encode("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"), (Ids{7, 8, 8, 8, 8}));  // 5 characters
  EXPECT_EQ(tokenizer.encode("abbbbbbbb"), (Ids{0}));                                             // 9
}

// Megabytes without a space: time and memory stay linear.
TEST(WordModels, ALongWord) {
  const Folder folder;
  folder.write("tokenizer.json", R"({"model":{"type":"Unigram","unk_id":0,
    "vocab":[["<unk>",0],["a",-2],["aa",-3],["aaa",-3.5],["b",-1]]}})");
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("aaaab"), (Ids{1, 3, 4}));  // of equal sums the longest token last, as Hugging Face has it
  const Ids ids = tokenizer.encode(std::string(3 << 20, 'a'));
  EXPECT_EQ(ids, Ids(1 << 20, 3));
}

}  // namespace
}  // namespace fp8::text
