// SPDX-License-Identifier: Apache-2.0
// The BPE against the textbook loop: find the pair of lowest rank (leftmost), merge it, again.
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "fp8/tools/text/word_model.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Source;
using Ids = std::vector<std::int64_t>;

Ids encode(const Bpe& bpe, std::string_view word) {
  Ids ids;
  const auto scratch = bpe.scratch();
  bpe.encode(word, ids, *scratch, SIZE_MAX);
  return ids;
}

// Words of ASCII letters only. O(n^2).
Ids textbook(const io::Json& model, const std::string& word) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < model.at("merges").size(); ++rank) {
    const auto& pair = model.at("merges")[rank];
    ranks[{pair[0], pair[1]}] = rank;
  }
  std::vector<std::string> tokens;
  for (const char c : word) tokens.emplace_back(1, c);
  while (true) {
    std::size_t best = SIZE_MAX, at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == SIZE_MAX) break;
    tokens[at] += tokens[at + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& token : tokens) ids.push_back(model.at("vocab").at(token));
  return ids;
}

// A random model over `letters`: merges of tokens that exist by then.
io::Json random_model(std::mt19937& random, const std::string& letters, int merges) {
  io::Json vocab = io::Json::object(), list = io::Json::array();
  std::vector<std::string> tokens;
  for (const char c : letters) tokens.emplace_back(1, c);
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  for (int i = 0; i < merges; ++i) {
    const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 9 || vocab.contains(left + right)) continue;
    vocab[left + right] = vocab.size();
    tokens.push_back(left + right);
    list.push_back({left, right});
  }
  return {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}};
}

// Few merges leave pairs of letters that no merge joins: there long words are cut. Many leave none.
TEST(Bpe, EqualsTheTextbookLoop) {
  std::mt19937 random(1);
  for (int round = 0; round < 120; ++round) {
    const std::string letters = std::string("abcdefgh").substr(0, 2 + random() % 7);
    const io::Json model = random_model(random, letters, static_cast<int>(random() % 60));
    const Bpe bpe(JsonPart(model, "test.json", "model"));
    for (const int size : {1, 2, 3, 10, 63, 64, 65, 66, 300}) {
      std::string word(size, ' ');
      for (char& c : word) c = letters[random() % letters.size()];
      ASSERT_EQ(encode(bpe, word), textbook(model, word)) << word << " with " << model;
    }
  }
}

TEST(Bpe, EqualRanksMergeFromTheLeft) {
  const Source source(R"({"vocab":{"a":0,"aa":1,"aaaa":2},"merges":["a a","aa aa"]})");
  const Bpe bpe(source.part());
  EXPECT_EQ(encode(bpe, "aaaaaaa"), (Ids{2, 1, 0}));
  EXPECT_EQ(encode(bpe, std::string(4 * 1000000 + 3, 'a')).size(), 1000002u);
}

TEST(Bpe, UnknownCharacters) {
  const char* const vocab = R"("vocab":{"<unk>":0,"a":1,"b":2,"ab":3,"<0xC3>":4,"<0xA9>":5},"merges":[["a","b"]])";
  const auto ids = [&](const std::string& options, std::string_view word) {
    return encode(Bpe(Source("{" + options + vocab + "}").part()), word);
  };
  EXPECT_EQ(ids("", "axyb"), (Ids{3}));  // left out: then a meets b, as for Hugging Face
  EXPECT_EQ(ids(R"("unk_token":"<unk>",)", "axyb"), (Ids{1, 0, 0, 2}));
  EXPECT_EQ(ids(R"("unk_token":"<unk>","fuse_unk":true,)", "axyb"), (Ids{1, 0, 2}));
  EXPECT_EQ(ids(R"("byte_fallback":true,)",
                "a\xC3\xA9"
                "b\xC3\xA8"),
            (Ids{1, 4, 5, 2}));  // C3 A8: not all bytes are there
  EXPECT_EQ(ids(R"("unk_token":"<unk>","byte_fallback":true,)",
                "a\xC3\xA9"
                "b\xC3\xA8"),
            (Ids{1, 4, 5, 2, 0}));
  EXPECT_EQ(ids("", "xyz"), Ids{});
  EXPECT_EQ(ids("", "\xF0\x9F\x98\x80"), Ids{});
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  const std::string rest = R"("vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b"]})";
  EXPECT_EQ(encode(Bpe(Source("{\"ignore_merges\":true," + rest).part()), "abc"), (Ids{4}));
  EXPECT_EQ(encode(Bpe(Source("{\"ignore_merges\":false," + rest).part()), "abc"), (Ids{3, 2}));
}

TEST(Bpe, ALongWordThatIsNoWordOfTheVocabularyKeepsUnknownRunsTogether) {
  const Source source(R"({"unk_token":"<unk>","fuse_unk":true,"vocab":{"<unk>":0,"a":1},"merges":[]})");
  const Bpe bpe(source.part());
  EXPECT_EQ(encode(bpe, std::string(100, 'a') + std::string(100, 'x') + "a"), [] {
    Ids ids(100, 1);
    ids.insert(ids.end(), {0, 1});
    return ids;
  }());
}

TEST(Bpe, Lookups) {
  const Source source(R"({"vocab":{"a":7,"b":3},"merges":[]})");
  const Bpe bpe(source.part());
  EXPECT_EQ(bpe.vocabulary().find("a"), 7);
  EXPECT_EQ(bpe.vocabulary().find("c"), -1);
  EXPECT_EQ(*bpe.vocabulary().token_of(3), "b");
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{8}, INT64_MAX, INT64_MIN})
    EXPECT_EQ(bpe.vocabulary().token_of(id), nullptr);
  EXPECT_EQ(bpe.vocabulary().max_id(), 7);
}

}  // namespace
}  // namespace fp8::text
