// SPDX-License-Identifier: Apache-2.0
// Which files of a folder are its tokenizer, and those that must be refused. Their ids: word_models_test.
#include "fp8/tools/text/files/tokenizer_files.h"

#include "fp8/tools/text/tokenizer.h"
#include "support/golden.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Ids = std::vector<std::int64_t>;

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
