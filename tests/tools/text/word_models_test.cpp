// SPDX-License-Identifier: Apache-2.0
// WordPiece, Unigram, WordLevel and the table of rules: what their parts of a tokenizer.json may say; below,
// that they give the right ids.

#include <random>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "fp8/tools/text/words/word_model.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Source;

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
    EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), message) << model;
  }
  for (const char* const table : {"", "AA", "AAAA", "!!!!", "/////w==", "BAAAAA==", "AQAAAAA="}) {
    const std::string normalizer = std::string(R"({"type":"Precompiled","precompiled_charsmap":")") + table + "\"}";
    folder.write("tokenizer.json",
                 R"({"model":{"type":"Unigram","vocab":[["a",-1]]},"normalizer":)" + normalizer + "}");
    EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "precompiled_charsmap") << table;
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
  EXPECT_IO_ERROR(tokenizer.encode("ab"), "no token for 'b'");
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
  EXPECT_EQ(tokenizer.encode(std::string(3 << 20, 'a')), Ids(1 << 20, 3));
}

// A tokenizer of each configuration that the families have, and each set of files that makes one, against what their
// own packages make of the same lines (fixtures/kinds.json and files.json, written by make_kind_fixtures.py).

const io::Json& fixture(const char* name) {
  static const io::Json kinds = io::read_json(testing::fixtures() / "kinds.json");
  static const io::Json files = io::read_json(testing::fixtures() / "files.json");
  return std::string(name) == "kinds" ? kinds : files;
}

void expect_equal(const Tokenizer& tokenizer, const io::Json& lines, const io::Json& expected) {
  ASSERT_GE(lines.size(), 30u);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const Ids ids = expected.at("ids").at(n).get<Ids>();
    EXPECT_EQ(tokenizer.encode(lines[n].get<std::string>()), ids) << lines[n];
    EXPECT_EQ(tokenizer.decode(ids), expected.at("decoded").at(n).get<std::string>()) << lines[n];
  }
}

TEST(Kinds, EncodeAndDecodeAsHuggingFace) {
  const auto& kinds = fixture("kinds").at("kinds");
  ASSERT_GE(kinds.size(), 40u);
  for (const auto& [name, kind] : kinds.items()) {
    SCOPED_TRACE(name);
    const Folder folder;
    folder.write("tokenizer.json", kind.at("tokenizer").dump());
    expect_equal(Tokenizer(folder.path()), fixture("kinds").at("lines"), kind);
  }
}

void write_files(const Folder& folder, const io::Json& files) {
  for (const auto& [name, bytes] : files.items()) folder.write(name, *from_base64(bytes.get<std::string>()));
}

TEST(Files, EncodeAndDecodeAsTheirPackages) {
  const auto& kinds = fixture("files").at("kinds");
  ASSERT_GE(kinds.size(), 25u);
  for (const auto& [name, kind] : kinds.items()) {
    SCOPED_TRACE(name);
    const Folder folder;
    write_files(folder, kind.at("files"));
    expect_equal(Tokenizer(folder.path()), kind.at("lines"), kind);
  }
}

// Every byte of the smallest models, in turn: an error of one line or a tokenizer, nothing else.
TEST(Files, DamagedSentencePieceModelsDoNoHarm) {
  for (const char* const name : {"spm t5", "spm bpe nmt_nfkc"}) {
    const auto& files = fixture("files").at("kinds").at(name).at("files");
    const Folder folder;
    write_files(folder, files);
    const std::string file = files.contains("spiece.model") ? "spiece.model" : "tokenizer.model";
    const std::string whole = *from_base64(files.at(file).get<std::string>());
    int refused = 0;
    for (std::size_t i = 0; i < whole.size(); i += 3) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] + 1 + static_cast<char>(i % 200));
      folder.write(file, i % 2 ? damaged : whole.substr(0, i));
      try {
        Tokenizer(folder.path()).encode("ab the<s> \xC3\xA9");
      } catch (const io::Error& error) {
        ++refused;
        ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
    EXPECT_GT(refused, 100) << name;
  }
}

// The BPE against the textbook loop: find the pair of lowest rank (leftmost), merge it, again.

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
