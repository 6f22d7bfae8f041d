// SPDX-License-Identifier: Apache-2.0
// load_chunks against the plain way: read everything, split, tokenize each document, join, cut.
#include "fp8/tools/text/dataset.h"

#include <random>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Ids = std::vector<std::int64_t>;

struct Dataset : ::testing::Test {
  Dataset() {
    std::filesystem::copy_file(fixtures() / "llama2.json", folder.path() / "tokenizer.json");
    tokenizer = std::make_unique<Tokenizer>(folder.path());
  }

  Folder folder;
  std::unique_ptr<Tokenizer> tokenizer;

  Chunks load(const std::filesystem::path& file, std::int64_t seq_len, std::int64_t samples = -1,
              std::int64_t skip = 0) const {
    return load_chunks(file, tokenizer.get(), {seq_len, samples, skip});
  }
  /// The line that load() throws.
  template <class... Arguments>
  std::string error(const Arguments&... arguments) const {
    return test::one_line_error<io::Error>([&] { load(arguments...); });
  }
};

// docs = text.split("<|endoftext|>"); with several: p.strip("\n"); ids += encode(p) for p that are not empty
Ids plain_ids(const Tokenizer& tokenizer, const std::string& text) {
  const std::string separator = "<|endoftext|>";
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + separator.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  Ids ids;
  for (std::string part : parts) {
    if (parts.size() > 1) {
      while (!part.empty() && part.front() == '\n') part.erase(0, 1);
      while (!part.empty() && part.back() == '\n') part.pop_back();
    }
    if (part.empty()) continue;
    const Ids more = tokenizer.encode(part);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

Ids rows(const Ids& ids, std::int64_t length, std::int64_t skip, std::int64_t count) {
  return Ids(ids.begin() + skip * length, ids.begin() + (skip + count) * length);
}

std::string words(int count, unsigned seed) {
  std::mt19937 random(seed);
  const io::Json lines = io::read_json(fixtures() / "lines.json");
  std::string text;
  for (int i = 0; i < count; ++i) text += lines[1 + random() % 200].get<std::string>() + " ";
  std::replace(text.begin(), text.end(), '\r', '\n');  // plain_ids() leaves line ends alone
  std::replace(text.begin(), text.end(), '\0', '0');   // which no text has
  return text;
}

TEST_F(Dataset, DocumentsAreJoinedAndCut) {
  const std::string text =
      "\n\nOnce upon a time\n<|endoftext|>\n<|endoftext|>The second  one.\n\nhas "
      "lines\n\n<|endoftext|>third<|endoftext|>\n";
  const auto file = folder.write("a.txt", text);
  const Ids ids = plain_ids(*tokenizer, text);
  ASSERT_GE(ids.size(), 16u);
  for (const std::int64_t length : {1, 2, 5, 7, 16}) {
    const std::int64_t count = static_cast<std::int64_t>(ids.size()) / length;
    const Chunks all = load(file, length);
    EXPECT_EQ(all.count, count);
    EXPECT_EQ(all.length, length);
    EXPECT_EQ(all.ids, rows(ids, length, 0, count));
    if (count < 2) continue;
    EXPECT_EQ(load(file, length, 1).ids, rows(ids, length, 0, 1));
    EXPECT_EQ(load(file, length, -1, 1).ids, rows(ids, length, 1, count - 1));
    EXPECT_EQ(load(file, length, 1, 1).ids, rows(ids, length, 1, 1));
    EXPECT_EQ(load(file, length, count + 5).count, count);  // fewer than asked for are not an error
  }
  EXPECT_EQ(ids[0], 1);  // each document starts with <s>
}

TEST_F(Dataset, OneDocumentKeepsItsNewlines) {
  EXPECT_EQ(load(folder.write("a.txt", "\n\nhello\n"), 1).ids, tokenizer->encode("\n\nhello\n"));
}

TEST_F(Dataset, LineEndsAreUnified) {
  EXPECT_EQ(load(folder.write("a.txt", "a\r\nb\rc\r\r\n\nd"), 1).ids, tokenizer->encode("a\nb\nc\n\n\nd"));
  EXPECT_EQ(load(folder.write("b.txt", "\r\na\r\n<|endoftext|>\rb\r"), 1).ids,
            plain_ids(*tokenizer, "\na\n<|endoftext|>\nb\n"));
}

TEST_F(Dataset, NulBytesAndInvalidUtf8AreRefused) {
  EXPECT_THAT(error(folder.write("a.txt", std::string("a\0b", 3)), 1), HasSubstr("a NUL byte at 1"));
  EXPECT_THAT(error(folder.write("b.txt", "ab\xff"), 1), HasSubstr("byte 0xff at 2 is not UTF-8"));
}

// Long enough to be read in parts: what comes out is what all of it gives.
TEST_F(Dataset, LongDocumentsAreReadInPart) {
  for (const char* const start : {"", "\n\n"}) {
    std::string text = start + words(60000, 1);
    ASSERT_GT(text.size(), 1000000u);
    for (const bool separator : {false, true}) {
      if (separator) text += "<|endoftext|>\nmore\n";
      const Ids ids = plain_ids(*tokenizer, text);
      const auto file = folder.write("long.txt", text);
      EXPECT_EQ(load(file, 256, 4).ids, rows(ids, 256, 0, 4));
      EXPECT_EQ(load(file, 256, 100, 400).ids, rows(ids, 256, 400, 100));
      const auto count = static_cast<std::int64_t>(ids.size()) / 256;
      EXPECT_EQ(load(file, 256).ids, rows(ids, 256, 0, count));
      EXPECT_EQ(load(file, 256, 1, count - 1).ids, rows(ids, 256, count - 1, 1));
    }
  }
}

// A separator at every place around the border of the blocks that are read.
TEST_F(Dataset, SeparatorsAcrossBlocks) {
  std::string filler;
  while (filler.size() < (1 << 20) - 10) filler += "word ";
  for (std::size_t extra = 0; extra < 24; ++extra) {
    const std::string text = filler + std::string(extra, 'b') + "<|endoftext|>\nsecond<|endoftext|>third";
    EXPECT_EQ(load(folder.write("blocks.txt", text), 1).ids, plain_ids(*tokenizer, text)) << extra;
  }
}

TEST_F(Dataset, OnlyTheNeededPartIsTokenized) {
  // Past what is needed stands a line that is no JSON: reading it would be an error.
  const io::Json line{{"text", words(2000, 3)}};
  const auto file = folder.write("a.jsonl", line.dump() + "\nnot json\n");
  EXPECT_EQ(load(file, 64, 3).count, 3);
  EXPECT_THAT(error(file, 64), HasSubstr("a.jsonl:2"));
}

TEST_F(Dataset, JsonLines) {
  const std::string content =
      "{\"text\": \"\\n one\\u00e9 \\ud83d\\ude00\\n\", \"id\": 3}\n\n  "
      "\r\n{\"text\":\"\"}\r\n{\"text\":\"two<|endoftext|>\"}";
  Ids ids = tokenizer->encode("\n one\xC3\xA9 \xF0\x9F\x98\x80\n");
  const Ids two = tokenizer->encode("two<|endoftext|>");
  ids.insert(ids.end(), two.begin(), two.end());
  EXPECT_EQ(load(folder.write("a.jsonl", content), 1).ids, ids);
}

TEST_F(Dataset, JsonLinesLongerThanABlock) {
  const std::string text(3 << 20, 'x');
  const auto file = folder.write("a.jsonl", io::Json{{"text", text}}.dump() + "\n" + io::Json{{"text", "y"}}.dump());
  Ids ids = tokenizer->encode(text);
  const Ids last = tokenizer->encode("y");
  ids.insert(ids.end(), last.begin(), last.end());
  EXPECT_EQ(load(file, 1).ids, ids);
}

TEST_F(Dataset, BadJsonLinesNameTheLine) {
  const auto message = [&](const std::string& content) { return error(folder.write("a.jsonl", content), 4); };
  EXPECT_THAT(message("{\"text\":\"a\"}\n{\"txt\":\"a\"}\n"), HasSubstr("a.jsonl:2: has no field 'text', found 'txt'"));
  EXPECT_THAT(message("\n{\"text\":7}\n"), HasSubstr("a.jsonl:2: field 'text' is a JSON number, expected a string"));
  EXPECT_THAT(message("[1]\n"), HasSubstr("a.jsonl[0]: is a JSON number"));
  EXPECT_THAT(message("{\"text\":\"a\n"), HasSubstr("a.jsonl:1"));
}

std::filesystem::path write_ids(const Folder& folder, const std::string& name, const std::string& tensor,
                                io::DType dtype, const std::vector<std::int64_t>& shape, const Ids& ids) {
  io::SafetensorsWriter writer(folder.path() / name, {{tensor, dtype, shape}});
  writer.write(tensor, ids.data());
  writer.commit();
  return folder.path() / name;
}

TEST_F(Dataset, SafetensorsAreUsedAsTheyAre) {
  const Ids ids{1, 2, 3, 4, 5, 6};
  const auto file = write_ids(folder, "a.safetensors", "input_ids", io::DType::I64, {3, 2}, ids);
  for (const Tokenizer* const t :
       {static_cast<const Tokenizer*>(nullptr), static_cast<const Tokenizer*>(tokenizer.get())}) {
    const Chunks chunks = load_chunks(file, t, {});
    EXPECT_EQ(chunks.count, 3);
    EXPECT_EQ(chunks.length, 2);
    EXPECT_EQ(chunks.ids, ids);
    EXPECT_EQ(load_chunks(file, t, {256, 1, 1}).ids, (Ids{3, 4}));
    EXPECT_EQ(load_chunks(file, t, {256, 100, 2}).ids, (Ids{5, 6}));
  }
}

TEST_F(Dataset, WhatStandsBesideIdsMustSayNothing) {
  const auto write = [&](const std::string& name, io::DType dtype, const Ids& beside) {
    const std::vector<std::int64_t> shape = {2, 3};
    io::SafetensorsWriter writer(folder.path() / "a.safetensors",
                                 {{"input_ids", io::DType::I64, shape}, {name, dtype, shape}});
    writer.write("input_ids", Ids{1, 2, 3, 4, 5, 6}.data());
    const std::vector<std::uint8_t> bytes(beside.begin(), beside.end());
    writer.write(name, dtype == io::DType::I64 ? static_cast<const void*>(beside.data()) : bytes.data());
    writer.commit();
    return folder.path() / "a.safetensors";
  };
  const auto refused = [&](const std::string& name, const Ids& beside) {
    return error(write(name, io::DType::I64, beside), 256);
  };
  for (const auto& [name, values] : {std::pair<const char*, Ids>{"attention_mask", {1, 1, 1, 1, 1, 1}},
                                     {"labels", {1, 2, 3, 4, 5, 6}},
                                     {"position_ids", {0, 1, 2, 0, 1, 2}},
                                     {"token_type_ids", {0, 0, 0, 0, 0, 0}}})
    EXPECT_EQ(load(write(name, io::DType::I64, values), 256).count, 2) << name;
  const auto padded = write("attention_mask", io::DType::I64, {1, 1, 1, 1, 1, 0});
  EXPECT_EQ(load(padded, 256, 1).ids, (Ids{1, 2, 3})) << "the padding is in a row that is not used";
  EXPECT_THAT(refused("attention_mask", {1, 1, 1, 1, 1, 0}), HasSubstr("'attention_mask' is not read, allowed"));
  EXPECT_THAT(error(write("attention_mask", io::DType::BOOL, {0, 1, 1, 1, 1, 1}), 256),
              HasSubstr("'attention_mask' is not read"));
  EXPECT_THAT(refused("labels", {1, 2, -100, 4, 5, 6}), HasSubstr("'labels' is not read"));
  EXPECT_THAT(refused("position_ids", {1, 2, 3, 1, 2, 3}), HasSubstr("'position_ids' is not read"));
  EXPECT_THAT(refused("token_type_ids", {0, 0, 1, 0, 0, 1}), HasSubstr("'token_type_ids' is not read"));
  EXPECT_THAT(refused("special_ids", {0, 0, 0, 0, 0, 0}), HasSubstr("'special_ids' is not read"));
}

TEST_F(Dataset, BadSafetensors) {
  const auto message = [&](const std::filesystem::path& file) { return error(file, 256); };
  EXPECT_THAT(message(write_ids(folder, "a.safetensors", "ids", io::DType::I64, {1, 2}, {1, 2})),
              HasSubstr("a.safetensors: has no tensor 'input_ids'"));
  EXPECT_THAT(message(write_ids(folder, "b.safetensors", "input_ids", io::DType::F64, {1, 2}, {1, 2})),
              HasSubstr("'input_ids' is F64 with 2 dimensions, expected I64"));
  EXPECT_THAT(message(write_ids(folder, "c.safetensors", "input_ids", io::DType::I64, {2}, {1, 2})),
              HasSubstr("with 1 dimensions"));
  EXPECT_THAT(message(write_ids(folder, "d.safetensors", "input_ids", io::DType::I64, {2, 2}, {1, 2, 3, 4096})),
              HasSubstr("input_ids[1, 1] is 4096, allowed: 0 to 4095"));
  EXPECT_THAT(message(write_ids(folder, "e.safetensors", "input_ids", io::DType::I64, {1, 2}, {-1, 2})),
              HasSubstr("input_ids[0, 0] is -1"));
  EXPECT_THAT(message(write_ids(folder, "f.safetensors", "input_ids", io::DType::I64, {0, 2}, {})),
              HasSubstr("'input_ids' is empty: [0, 2]"));
  EXPECT_THAT(message(folder.write("g.safetensors", "no")), HasSubstr("g.safetensors"));
  const auto file = write_ids(folder, "h.safetensors", "input_ids", io::DType::I64, {2, 1}, {1, 2});
  EXPECT_THAT(error(file, 256, -1, 2), HasSubstr("2 chunks, none left after skipping 2 (--skip)"));
}

TEST_F(Dataset, TooLittleText) {
  const auto few = folder.write("few.txt", "a b c");
  const auto tokens = std::to_string(tokenizer->encode("a b c").size());
  EXPECT_THAT(error(few, 256), HasSubstr("few.txt: " + tokens + " tokens, fewer than one chunk of 256 (--seq-len)"));
  EXPECT_THAT(error(few, 1, -1, 100), AllOf(HasSubstr(tokens + " chunks of 1"), HasSubstr("(--skip)")));
  EXPECT_THAT(error(few, 1, 5, INT64_MAX), HasSubstr("(--skip)"));
  EXPECT_EQ(load(few, 1, INT64_MAX, 1).count, static_cast<std::int64_t>(tokenizer->encode("a b c").size()) - 1);
  EXPECT_THAT(error(few, INT64_MAX), HasSubstr("fewer than one chunk"));
  const Chunks all = load_chunks(few, tokenizer.get(), {.seq_len = 256, .shorter = true});
  EXPECT_EQ(all.ids, tokenizer->encode("a b c"));
  EXPECT_EQ(all.count, 1);
  for (const char* const nothing : {"", "<|endoftext|>", "\n\n<|endoftext|>\n"})
    EXPECT_THAT(error(folder.write("none.txt", nothing), 4), HasSubstr("none.txt: holds no text")) << nothing;
  EXPECT_THAT(error(folder.write("none.jsonl", "\n\n"), 4), HasSubstr("none.jsonl: holds no text"));
}

TEST_F(Dataset, PathsAndOptions) {
  const auto file = folder.write("a.txt", "hello");
  EXPECT_THAT(error(folder.path() / "missing.txt", 4), HasSubstr("missing.txt"));
  std::filesystem::create_directory(folder.path() / "folder.txt");
  EXPECT_THAT(error(folder.path() / "folder.txt", 4), HasSubstr("folder"));
  EXPECT_THAT(error(folder.path(), 4), HasSubstr("folder"));
  EXPECT_THAT(error(folder.write("a.csv", "x"), 4),
              HasSubstr("a.csv: has the suffix '.csv', allowed: .txt, .md, .jsonl, .json, .safetensors"));
  EXPECT_THAT(error(folder.write("plain", "x"), 4), HasSubstr("suffix ''"));
  EXPECT_THAT(error(file, 0), HasSubstr("--seq-len is 0, allowed: at least 1"));
  EXPECT_THAT(error(file, -3), HasSubstr("--seq-len is -3"));
  EXPECT_THAT(error(file, 4, 0), HasSubstr("--samples is 0"));
  EXPECT_THAT(error(file, 4, -2), HasSubstr("--samples is -2"));
  EXPECT_THAT(error(file, 4, 1, -1), HasSubstr("--skip is -1"));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { load_chunks(file, nullptr, {}); }),
              HasSubstr("needs a tokenizer beside the model"));
}

}  // namespace
}  // namespace fp8::text
