// SPDX-License-Identifier: Apache-2.0
// Tokenizers of the three kinds against what Hugging Face's tokenizers gives (fixtures/, written by make_fixtures.py),
// and tokenizer.json files that must be refused.
#include "fp8/tools/text/tokenizer.h"

#include <chrono>
#include <cstdlib>
#include <random>
#include <tuple>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "support/child.h"
#include "support/golden.h"
#include "support/threads.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Ids = std::vector<std::int64_t>;

Tokenizer fixture_tokenizer(const Folder& folder, const std::string& name) {
  std::filesystem::copy_file(fixtures() / (name + ".json"), folder.path() / "tokenizer.json");
  return Tokenizer(folder.path());
}

struct HuggingFace : ::testing::TestWithParam<const char*> {
  Folder folder;
  Tokenizer tokenizer = fixture_tokenizer(folder, GetParam());
  io::Json lines = io::read_json(fixtures() / "lines.json");
  io::Json expected = io::read_json(fixtures() / "ids.json").at(GetParam());
};

TEST_P(HuggingFace, GivesTheSameIds) {
  ASSERT_GE(lines.size(), 1000u);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const std::string line = lines[n];
    EXPECT_EQ(tokenizer.encode(line), expected.at("ids")[n].get<Ids>()) << "line " << n << ": " << lines[n];
  }
}

TEST_P(HuggingFace, DecodesToTheSameText) {
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const auto& differing = expected.at("decoded");
    const auto found = differing.find(std::to_string(n));
    const std::string text = found == differing.end() ? lines[n] : *found;
    EXPECT_EQ(tokenizer.decode(expected.at("ids")[n].get<Ids>()), text) << "line " << n;
  }
}

TEST_P(HuggingFace, WithoutSpecialTokensOnlyTheFirstIdsGo) {
  const Ids with = tokenizer.encode("hello world"), without = tokenizer.encode("hello world", false);
  const std::size_t added = with.size() - without.size();
  EXPECT_EQ(added, std::string(GetParam()) == "gpt2" ? 0u : 1u);
  EXPECT_EQ(Ids(with.begin() + added, with.end()), without);
}

TEST_P(HuggingFace, ALimitGivesTheFirstIds) {
  std::string text;
  for (const auto& line : lines) text += line.get<std::string>() + " ";
  const Ids all = tokenizer.encode(text);
  for (const std::size_t limit :
       {std::size_t{1}, std::size_t{2}, std::size_t{100}, std::size_t{5000}, all.size() + 10}) {
    const Ids some = tokenizer.encode(text, true, limit);
    ASSERT_GE(some.size(), std::min(limit, all.size()));
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << limit;
  }
}

TEST_P(HuggingFace, InvalidBytesAreReadAsReplacementCharacters) {
  EXPECT_EQ(tokenizer.encode("a\xff\xc3(\xe2\x82"), tokenizer.encode("a\xEF\xBF\xBD\xEF\xBF\xBD(\xEF\xBF\xBD"));
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 60, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    for (const std::int64_t id : tokenizer.encode(bytes)) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, tokenizer.vocab_size());
    }
  }
}

TEST_P(HuggingFace, AnIdOutsideTheVocabularyIsNoText) {
  for (const std::int64_t id : {std::int64_t{-1}, tokenizer.vocab_size(), std::int64_t{1} << 40}) {
    EXPECT_EQ(tokenizer.decode({0, id}), tokenizer.decode({0})) << id;  // as Hugging Face's
  }
}

TEST_P(HuggingFace, EmptyTextHasOnlyTheSpecialTokens) {
  EXPECT_EQ(tokenizer.encode("").size(), std::string(GetParam()) == "gpt2" ? 0u : 1u);
  EXPECT_TRUE(tokenizer.encode("", false).empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST_P(HuggingFace, ThreadsShareATokenizer) {
  std::vector<int> equal(4, 0);
  test::on_threads(4, [&](int t) {
    for (std::size_t n = 0; n < lines.size(); ++n)
      equal[t] += tokenizer.encode(lines[n].get<std::string>()) == expected.at("ids")[n].get<Ids>();
  });
  for (const int count : equal) EXPECT_EQ(count, static_cast<int>(lines.size()));
}

// A text of megabytes is one word for the Llama-2 kind. The bound is generous: a quadratic merge loop would take hours.
TEST_P(HuggingFace, MegabytesTakeSeconds) {
  std::string text;
  while (text.size() < (4u << 20))
    for (const auto& line : lines) text += line.get<std::string>();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GT(tokenizer.encode(text).size(), text.size() / 8);
  const std::string one_letter(4u << 20, 'a'), spaces(4u << 20, ' ');
  tokenizer.encode(one_letter);
  tokenizer.encode(spaces);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 600);
  RecordProperty("seconds", std::to_string(seconds.count()));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFace, ::testing::Values("llama2", "gpt2", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, VocabSizeCountsAddedTokens) {
  Folder folder;
  EXPECT_EQ(fixture_tokenizer(folder, "llama3").vocab_size(), 4096 + 7);
}

// kjv-byte-1.7M: each id is its byte's value.
TEST(ModelFolders, ByteTokenizer) {
  const char* const data = std::getenv("FP8_TEST_DATA");
  if (!data) GTEST_SKIP() << "FP8_TEST_DATA is not set";
  const Tokenizer tokenizer(std::filesystem::path(data) / "models/kjv-byte-1.7M");
  const std::string text = "In the beginning\n\xC3\xA9\x01 \xF0\x9F\x98\x80";
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.encode(text), ids);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

// stories260K: the ids tokenizers 0.23 gives (in this tokenizer Prepend also stands before text after a special token).
TEST(ModelFolders, Stories260K) {
  const char* const data = std::getenv("FP8_TEST_DATA");
  if (!data) GTEST_SKIP() << "FP8_TEST_DATA is not set";
  const Tokenizer tokenizer(std::filesystem::path(data) / "models/stories260K");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.encode("Once upon a time, there was a girl"),
            (Ids{1, 403, 407, 261, 378, 432, 383, 286, 261, 298, 315, 421}));
  EXPECT_EQ(tokenizer.encode("a</s>b \xE2\x82\xAC"), (Ids{1, 261, 2, 268, 410, 503}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Lily's mom\nsaid \xE2\x82\xAC")), "Lily's mom\nsaid \xE2\x82\xAC");
}

constexpr const char* kSmall =
    R"({"version":"1.0","added_tokens":[{"id":4,"content":"<s>","special":true}],"normalizer":null,
  "pre_tokenizer":{"type":"Split","pattern":{"Regex":" "},"behavior":"Isolated","invert":false},
  "post_processor":{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
    "special_tokens":{"<s>":{"id":"<s>","ids":[4],"tokens":["<s>"]}}},
  "decoder":{"type":"Fuse"},
  "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2," ":3},"merges":["a b"]}})";

TEST(Tokenizer, SmallFile) {
  Folder folder;
  folder.write("tokenizer.json", kSmall);
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("ab ba<s>a"), (Ids{4, 2, 3, 1, 0, 4, 0}));
  EXPECT_EQ(tokenizer.decode({4, 2, 3, 1}), "ab b");
}

/// Changes of the small file that make it wrong, "POINTER VALUE" each; the value REMOVE removes.
TEST(Refused, NamesFileAndPart) {
  const auto refused = [](const std::string& change) {
    const std::string value = change.substr(change.find(' ') + 1);
    const io::Json::json_pointer pointer(change.substr(0, change.find(' ')));
    io::Json json = io::parse_json(kSmall, "small");
    if (value == "REMOVE") {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = io::parse_json(value, "value");
    }
    const Folder folder;
    const auto path = folder.write("tokenizer.json", json.dump());
    const auto error = test::one_line_error<io::Error>([&] { Tokenizer tokenizer(folder.path()); });
    EXPECT_THAT(error, HasSubstr(path.string() + ": "));
    return error;
  };
  EXPECT_GOLDEN(refused(text));
}

TEST(Tokenizer, FilesThatAreNoTokenizer) {
  Folder folder;
  EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "tokenizer.json");
  for (const char* const content : {"", "[]", "3", "{", "\xff"}) {
    folder.write("tokenizer.json", content);
    EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "tokenizer.json") << content;
  }
}

TEST(Tokenizer, EveryTruncationIsAnError) {
  Folder folder;
  const std::string small = kSmall;
  for (std::size_t size = 0; size < small.size(); ++size) {
    folder.write("tokenizer.json", small.substr(0, size));
    EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "tokenizer.json") << size;
  }
}

TEST(Tokenizer, RunawayReplacementsEnd) {
  io::Json json = io::parse_json(kSmall, "small");
  io::Json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaaaaaaaa"}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", io::Json::array()}};
  for (int i = 0; i < 20; ++i) json["normalizer"]["normalizers"].push_back(doubling);
  Folder folder;
  folder.write("tokenizer.json", json.dump());
  EXPECT_NO_THROW(Tokenizer(folder.path()).encode("b"));
  json["normalizer"]["normalizers"][0]["content"] = std::string(1 << 20, 'a');
  folder.write("tokenizer.json", json.dump());
  EXPECT_IO_ERROR(Tokenizer(folder.path()).encode(std::string(1 << 12, 'a')), "replacing by");
}

TEST(Tokenizer, AChainOfStepsIsHeldToOneLimit) {
  const io::Json base = io::parse_json(kSmall, "small");
  const auto chain = [](const char* list, const io::Json& step, int count) {
    io::Json json = {{"type", "Sequence"}, {list, io::Json::array()}};
    for (int i = 0; i < count; ++i) json[list].push_back(step);
    return json;
  };
  const io::Json growing = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(16, 'a')}};
  const io::Json longer = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'a')}};
  const io::Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const std::vector<std::tuple<const char*, io::Json, const char*>> chains = {
      {"normalizer", chain("normalizers", growing, 20), "replacing by 'aaaaaaaaaaaaaaaa' makes too long a text"},
      {"normalizer", chain("normalizers", chain("normalizers", growing, 5), 4), "makes too long a text"},
      {"normalizer", chain("normalizers", longer, 20), "prepending 'aaaa"},
      {"pre_tokenizer", chain("pretokenizers", bytes, 30), "the pre_tokenizer makes too long a text"},
      {"decoder", chain("decoders", growing, 20), "replacing by 'aaaaaaaaaaaaaaaa' makes too long a text"}};
  Folder folder;
  const std::int64_t before = test::peak_memory();
  for (const auto& [part, steps, message] : chains) {
    io::Json json = base;
    json[part] = steps;
    folder.write("tokenizer.json", json.dump());
    const Tokenizer tokenizer(folder.path());
    const std::string error = test::one_line_error<io::Error>([&] {
      const auto ids = tokenizer.encode("a\xC3\xA9");
      if (std::string(part) == "decoder") (void)tokenizer.decode(ids);
    });
    EXPECT_THAT(error, HasSubstr(message)) << part;
  }
#ifdef __SANITIZE_ADDRESS__
  constexpr std::int64_t kKeptByTheSanitizer = std::int64_t{256} << 20;  // freed memory, to find its use
#else
  constexpr std::int64_t kKeptByTheSanitizer = 0;
#endif
  EXPECT_LT(test::peak_memory(), before + (std::int64_t{200} << 20) + kKeptByTheSanitizer);
}

TEST(Tokenizer, AChainOfTooManyStepsIsNamed) {
  const std::vector<std::tuple<const char*, const char*, io::Json>> parts = {
      {"normalizer", "normalizers", {{"type", "NFC"}}},
      {"pre_tokenizer", "pretokenizers", {{"type", "Digits"}, {"individual_digits", true}}},
      {"decoder", "decoders", {{"type", "Fuse"}}}};
  Folder folder;
  for (const auto& [part, list, step] : parts) {
    io::Json json = io::parse_json(kSmall, "small"), inner = {{"type", "Sequence"}, {list, io::Json::array()}};
    for (int i = 0; i < 64; ++i) inner[list].push_back(step);
    json[part] = {{"type", "Sequence"}, {list, io::Json::array({inner})}};
    folder.write("tokenizer.json", json.dump());
    EXPECT_NO_THROW(Tokenizer(folder.path()).encode("b"));
    json[part][list].push_back(step);
    folder.write("tokenizer.json", json.dump());
    EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), std::string(part) + " has 65 steps, allowed 64");
  }
}

TEST(Tokenizer, TooMuchAddedText) {
  io::Json json = io::parse_json(kSmall, "small");
  json["added_tokens"][0]["content"] = std::string(5000, 'x');
  Folder folder;
  folder.write("tokenizer.json", json.dump());
  EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "content of 5000 bytes, allowed 256");
  json["added_tokens"] = io::Json::array();
  for (int i = 0; i < 17'000; ++i)
    json["added_tokens"].push_back({{"id", 10 + i}, {"content", std::to_string(i) + std::string(250, 'x')}});
  folder.write("tokenizer.json", json.dump());
  EXPECT_IO_ERROR(Tokenizer tokenizer(folder.path()), "added_tokens has more than 4194304");
}

// Each byte in turn replaced: an error or a tokenizer, nothing else (run under sanitizers, too).
TEST(Tokenizer, DamagedFilesDoNoHarm) {
  Folder folder;
  std::mt19937 random(3);
  const std::string small = kSmall;
  int refused = 0;
  for (std::size_t i = 0; i < small.size(); ++i) {
    std::string damaged = small;
    damaged[i] = "\"{}[],:0-x"[random() % 10];
    folder.write("tokenizer.json", damaged);
    try {
      Tokenizer(folder.path()).encode("ab ba <s>");
    } catch (const io::Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// Which files of a folder are its tokenizer, and those that must be refused. Their ids: word_models_test.

constexpr const char* kBert = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nc\n";

// Fields of a protocol buffer.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes.push_back(static_cast<char>(value | 128));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string number_field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }
std::string bytes_field(unsigned number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string piece(const std::string& text, const std::string& score, unsigned kind) {
  return bytes_field(1, bytes_field(1, text) + varint(2 << 3 | 5) + score + number_field(3, kind));
}
const std::string kZero(4, '\0'), kNan = "\xff\xff\xff\x7f";

std::string error_in(const Folder& folder) {
  return test::one_line_error<io::Error>([&] { Tokenizer tokenizer(folder.path()); });
}

TEST(TokenizerFiles, TokenizerJsonComesFirst) {
  const Folder folder;
  folder.write("vocab.txt", kBert);
  EXPECT_THAT(read_tokenizer(folder.path()).name, HasSubstr("vocab.txt"));
  folder.write("tokenizer.model", to_base64("a") + " 0\n");
  EXPECT_THAT(read_tokenizer(folder.path()).name, HasSubstr("tokenizer.model"));
  folder.write("tekken.json", "{}");
  EXPECT_THAT(error_in(folder), HasSubstr("tekken.json: config is missing"));
  folder.write("tokenizer.json", R"({"model":{"vocab":{"x":0},"merges":[]}})");
  EXPECT_THAT(read_tokenizer(folder.path()).name, HasSubstr("tokenizer.json"));
  EXPECT_EQ(Tokenizer(folder.path()).encode("x"), (Ids{0}));
}

TEST(TokenizerFiles, AFolderWithoutAny) {
  const Folder folder;
  EXPECT_THAT(error_in(folder), AllOf(HasSubstr(folder.path().string()), HasSubstr("has no tokenizer, allowed: tok")));
  folder.write("a.tiktoken", "");
  folder.write("b.tiktoken", "");
  EXPECT_THAT(error_in(folder), HasSubstr("has 2 files *.tiktoken"));
}

TEST(TokenizerFiles, VocabTxt) {
  const Folder folder;
  folder.write("vocab.txt", std::string(kBert) + "\r\n");
  EXPECT_EQ(Tokenizer(folder.path()).encode("AB c d"), (Ids{2, 5, 6, 7, 1, 3}));
  folder.write("tokenizer_config.json", R"({"do_lower_case":false,"mask_token":{"content":"[M]","lstrip":true}})");
  EXPECT_EQ(Tokenizer(folder.path()).encode("A c [M]"), (Ids{2, 1, 7, 9, 3}));
}

TEST(TokenizerFiles, AddedTokensComeFromAllFiles) {
  const Folder folder;
  folder.write("vocab.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})");
  folder.write("merges.txt", "#version: 0.2\na b\n");
  folder.write("added_tokens.json", R"({"<x>":7})");
  folder.write("special_tokens_map.json", R"({"pad_token":"<pad>","additional_special_tokens":["<y>"]})");
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("ab<x>a<pad><y><|endoftext|>"), (Ids{2, 7, 0, 8, 9, 3}));
  EXPECT_EQ(tokenizer.decode({2, 7, 8, 9, 3}), "ab<x>");
}

/// The error of a folder with `files` and the one that `file` describes: its name, and its text on the lines below.
std::string refused_file(const std::string& file, const std::map<std::string, std::string>& files = {}) {
  const Folder folder;
  for (const auto& [name, content] : files) folder.write(name, content);
  folder.write(file.substr(0, file.find('\n')), file.substr(file.find('\n') + 1));
  const std::string error = error_in(folder);
  EXPECT_THAT(error, HasSubstr(folder.path().string()));
  return error;
}

TEST(TokenizerFiles, WhatIsRefusedNamesFileAndPlace) {
  EXPECT_GOLDEN(refused_file(text + "\n"));
  const std::string long_token = to_base64(std::string(1026, 'a')) + " 0";
  EXPECT_THAT(refused_file("vocab.txt\n"), HasSubstr("vocab.txt: holds no tokens"));
  EXPECT_THAT(refused_file("vocab.txt\na\nb\xff\n"), HasSubstr("vocab.txt: line 2 is 'b\\xff', expected UTF-8"));
  EXPECT_THAT(refused_file("x.tiktoken\n" + long_token), HasSubstr("expected a token of at most 1024 bytes"));
  EXPECT_THAT(refused_file("tokenizer.model\n"), HasSubstr("tokenizer.model: is empty"));
}

TEST(TokenizerFiles, WrongMergesAndSettings) {
  EXPECT_GOLDEN(refused_file(text + "\n", {{"vocab.json", R"({"a":0,"b":1,"ab":2})"}, {"merges.txt", "a b\n"}}));
}

// 256 bytes, and what is behind them.
io::Json tekken_of(const std::vector<std::string>& more) {
  io::Json vocab = io::Json::array();
  const auto add = [&](const std::string& bytes) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", to_base64(bytes)}, {"token_str", nullptr}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const auto& bytes : more) add(bytes);
  const io::Json config = {{"pattern", "\\p{L}+|[^\\p{L}]+"},
                           {"default_vocab_size", 20 + vocab.size()},
                           {"default_num_special_tokens", 20},
                           {"version", "v3"}};
  return {{"config", config}, {"vocab", vocab}};
}

TEST(TokenizerFiles, Tekken) {
  const Folder folder;
  folder.write("tekken.json", tekken_of({"ab", "abab"}).dump());
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("abab1ab[INST]"), (Ids{1, 277, 20 + '1', 276, 3}));
  EXPECT_EQ(tokenizer.decode({1, 277, 20 + '1', 3}), "abab1");
  EXPECT_EQ(tokenizer.vocab_size(), 278);
  folder.write("tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true})");
  EXPECT_EQ(Tokenizer(folder.path()).encode("ab"), (Ids{276, 2}));
}

TEST(TokenizerFiles, WrongTekkensNameTheKey) {
  const auto refused = [](const std::string& key, const std::string& value) {
    const Folder folder;
    io::Json json = tekken_of({"ab", "abab"});
    json[io::Json::json_pointer(key)] = io::parse_json(value, "value");
    folder.write("tekken.json", json.dump());
    const std::string error = error_in(folder);
    EXPECT_THAT(error, HasSubstr("tekken.json: "));
    return error;
  };
  EXPECT_GOLDEN(refused(text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)));
}

// Files of classes that number or cut otherwise are not read as if they did not.
TEST(TokenizerFiles, OtherClassesNeedTheirTokenizerJson) {
  const std::vector<std::pair<const char*, const char*>> all{{"vocab.txt", "EsmTokenizer"},
                                                             {"vocab.json", "OpenAIGPTTokenizerFast"},
                                                             {"tokenizer.model", "CamembertTokenizer"}};
  for (const auto& [file, kind] : all) {
    const Folder folder;
    folder.write("merges.txt", "a b\n");
    folder.write(file, std::string(file) == "vocab.json" ? "{}" : "\n");
    folder.write("tokenizer_config.json", io::Json{{"tokenizer_class", kind}}.dump());
    EXPECT_THAT(error_in(folder),
                AllOf(HasSubstr(file), HasSubstr("which is supported with its tokenizer.json alone")));
  }
}

TEST(TokenizerFiles, SentencePieceModels) {
  const Folder folder;
  const auto error = [&](const std::string& bytes) {
    folder.write("tokenizer.model", bytes);
    return error_in(folder);
  };
  const std::string unk = piece("<unk>", kZero, 2);
  folder.write("tokenizer.model", unk + piece("a", kZero, 1) + bytes_field(2, number_field(3, 2)));
  EXPECT_EQ(Tokenizer(folder.path()).encode("aba"), (Ids{0, 1, 0, 1}));
  EXPECT_THAT(error(unk + "\x0a\x7f"), HasSubstr("a field of 127 bytes, left are 0"));
  EXPECT_THAT(error(unk + "\x0b"), HasSubstr("a field of wire type 3, allowed: 0, 1, 2, 5"));
  EXPECT_THAT(error(unk + std::string(11, '\xff')), HasSubstr("a number of more than ten bytes"));
  EXPECT_THAT(error(unk + unk), HasSubstr("piece 1 repeats '<unk>'"));
  EXPECT_THAT(error(unk + piece("", kZero, 1)), HasSubstr("piece 1 has 0 bytes, allowed: 1 to 1024"));
  EXPECT_THAT(error(unk + piece("\xff", kZero, 1)), HasSubstr("piece 1 is '\\xff', expected UTF-8"));
  EXPECT_THAT(error(unk + piece("a", kNan, 1)), HasSubstr("piece 1 has the score"));
  EXPECT_THAT(error(unk + piece("a", kZero, 9)), HasSubstr("piece 1 is of type 9, allowed: 1 to 6"));
  EXPECT_THAT(error(piece("a", kZero, 1)), HasSubstr("has 0 unknown pieces, expected one"));
  EXPECT_THAT(error(unk + bytes_field(2, number_field(3, 3))), HasSubstr("model_type is 3, supported: 1"));
  EXPECT_THAT(error(unk + bytes_field(3, bytes_field(2, "ab"))), HasSubstr("precompiled_charsmap is no table"));
  EXPECT_THAT(error(unk + piece("a", kZero, 5) + bytes_field(2, number_field(3, 2))),
              HasSubstr("'a' of a BPE is unused"));
}

}  // namespace
}  // namespace fp8::text
