// SPDX-License-Identifier: Apache-2.0
// Kinds of data files, what is refused, and rows and documents of several files.
#include "fp8/tools/text/data/data_file.h"

#include <unistd.h>

#include "fp8/tools/text/data/documents.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;

std::vector<std::string> texts_of(const DataFiles& files) {
  std::vector<std::string> all;
  Documents documents(files, {});
  for (Document document; documents.read(1 << 30, document); documents.advance()) all.push_back(document.text);
  return all;
}

std::vector<std::string> rows_of(const std::filesystem::path& file) {
  std::vector<std::string> all;
  JsonRows rows(file);
  io::Json row;
  for (std::string where; rows.next(row, where);) all.push_back(where.substr(where.rfind('/') + 1) + " " + row.dump());
  return all;
}

TEST(DataFile, Kinds) {
  const Folder folder;
  for (const char* const name : {"a.txt", "a.md", "a.TXT"})
    EXPECT_EQ(data_kind(folder.write(name, "x")), DataKind::text);
  for (const char* const name : {"a.json", "a.jsonl"}) EXPECT_EQ(data_kind(folder.write(name, "[]")), DataKind::rows);
  EXPECT_EQ(data_kind(kBuiltInText), DataKind::text);
  EXPECT_EQ(data_name(std::filesystem::path("-")), "standard input");
  EXPECT_EQ(data_name(DataFiles{"a", "b", "c"}), "a and 2 more");
  EXPECT_THAT(test::one_line_error<io::Error>(
                  [&] { data_kind(DataFiles{folder.write("a.txt", "x"), folder.write("b.safetensors", "x")}); }),
              HasSubstr("b.safetensors: stands beside other files"));
  EXPECT_THAT(test::one_line_error<io::Error>(
                  [&] { data_kind(DataFiles{folder.path() / "a.txt", folder.path() / "gone.txt"}); }),
              HasSubstr("gone.txt: "));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { data_kind(folder.write("a.csv", "x")); }),
              HasSubstr("a.csv: has the suffix '.csv', allowed: .txt, .md, .jsonl, .json, .safetensors"));
}

TEST(DataFile, PackedAndBinaryFilesAreRefusedWithAWayOut) {
  const Folder folder;
  const std::tuple<const char*, std::string, const char*> kFiles[] = {
      {"a.parquet", "PAR1", "is Parquet, expected text: python3 -c \"import pandas; pandas.read_parquet('"},
      {"a.txt", "PAR1", "duckdb -c \"copy (from '"},
      {"a.jsonl.gz", "\x1f\x8b", "is gzip, expected text: zcat '"},
      {"b.txt", "\x1f\x8b", "' | fp8 ... --data -"},
      {"a.zst", "\x28\xb5\x2f\xfd", "zstdcat"},
      {"a.zip", "PK\x03\x04", "is zip"},
      {"c.txt", "GGUF", "is GGUF"},
      {"d.txt", "%PDF-1.7", "pdftotext"},
      {"e.txt", std::string("ab\0c", 4), "holds a NUL byte at 2"},
      {"f.json", std::string("[\0]", 3), "holds a NUL byte at 1"}};
  for (const auto& [name, content, message] : kFiles)
    EXPECT_THAT(test::one_line_error<io::Error>([&, &n = name, &c = content] { texts_of(folder.write(n, c)); }),
                AllOf(HasSubstr(name), HasSubstr(message)))
        << name;
  EXPECT_THAT(test::one_line_error<io::Error>([&] { texts_of(folder.write("g.txt", "caf\xe9 x")); }),
              HasSubstr("g.txt: byte 0xe9 at 3 is not UTF-8, expected text (of Latin-1: iconv"));
  EXPECT_THAT(
      test::one_line_error<io::Error>([&] { texts_of(folder.write("h.txt", std::string(1 << 17, 'x') + '\0')); }),
      HasSubstr("h.txt: byte 0x00 at 131072 is NUL"));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { texts_of(folder.write("it's.gz", "\x1f\x8b")); }),
              HasSubstr("it'\\''s.gz'"));
}

TEST(DataFile, ACharacterMayBeCut) {
  const Folder folder;
  const auto file = folder.write("a.txt", "ab\xc3\xa9");
  TextFile text(file);
  Document document;
  EXPECT_NO_THROW(require_text(file, "ab\xc3", 0, true));
  EXPECT_THROW(require_text(file, "ab\xc3", 0, false), io::Error);
  EXPECT_THROW(require_text(file, "ab\xff", 0, true), io::Error);
}

TEST(JsonRows, LinesAndArrays) {
  const Folder folder;
  EXPECT_THAT(rows_of(folder.write("a.jsonl", "\n{\"a\": 1}\r\n\n\"x\"\n")),
              ElementsAre("a.jsonl:2 {\"a\":1}", "a.jsonl:4 \"x\""));
  EXPECT_THAT(rows_of(folder.write("a.json", " [ {\"a\": [1, \"],\\\"\"]} ,\n\"x, y\", 3 ]\n")),
              ElementsAre("a.json[0] {\"a\":[1,\"],\\\"\"]}", "a.json[1] \"x, y\"", "a.json[2] 3"));
  EXPECT_THAT(rows_of(folder.write("b.json", "[]")), ElementsAre());
  EXPECT_THAT(rows_of(folder.write("c.json", "")), ElementsAre());
  EXPECT_THAT(rows_of(folder.write("d.json", "{\"a\": 1}\n{\"a\": 2}")),
              ElementsAre("d.json:1 {\"a\":1}", "d.json:2 {\"a\":2}"));
  const std::string big(3 << 20, 'x');
  EXPECT_THAT(rows_of(folder.write("e.json", "[\"" + big + "\",1]")),
              ElementsAre("e.json[0] \"" + big + "\"", "e.json[1] 1"));
  const std::pair<const char*, const char*> kBad[] = {{"[1", "[0]: the array has no end"},
                                                      {"[1,]", "[1]"},
                                                      {"[,1]", "[0]"},
                                                      {"[1] 2", "more behind the array"},
                                                      {"[] x", "more behind the array"},
                                                      {"[{\"a\": }]", "[0]:1:7"},
                                                      {"[1 2]", "[0]"},
                                                      {"[1}]", "[0]"},
                                                      {"{\n\"a\": 1}", ":1:"}};
  for (const auto& [content, message] : kBad)
    EXPECT_THAT(test::one_line_error<io::Error>([&, &c = content] { rows_of(folder.write("bad.json", c)); }),
                AllOf(HasSubstr("bad.json"), HasSubstr(message)))
        << content;
}

TEST(Documents, OfSeveralFiles) {
  const Folder folder;
  const DataFiles files{folder.write("a.md", "# A\n"), folder.write("b.json", "[\"one\", {\"text\": \"two\"}]"),
                        folder.write("c.txt", ""), folder.write("d.txt", "x<|endoftext|>\ny\n")};
  EXPECT_THAT(texts_of(files), ElementsAre("# A\n", "one", "two", "x", "y"));
  EXPECT_GT(texts_of(DataFiles{kBuiltInText})[0].size(), 100'000u);
}

/// Puts what is written into a pipe in the place of standard input.
TEST(Documents, OfStandardInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string rows = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  ASSERT_EQ(::write(ends[1], rows.data(), rows.size()), static_cast<ssize_t>(rows.size()));
  ::close(ends[1]);
  ASSERT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  ::close(ends[0]);
  EXPECT_EQ(data_kind(kStandardInput), DataKind::rows);
  for (int again = 0; again < 2; ++again) EXPECT_THAT(texts_of(DataFiles{kStandardInput}), ElementsAre("one", "two"));
}

}  // namespace
}  // namespace fp8::text
