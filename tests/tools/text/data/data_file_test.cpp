// SPDX-License-Identifier: Apache-2.0
// Kinds of data files, what is refused, and rows and documents of several files.
#include "fp8/tools/text/data/data_file.h"

#include <unistd.h>

#include "support/golden.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

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
  EXPECT_IO_ERROR(data_kind(DataFiles{folder.write("a.txt", "x"), folder.write("b.safetensors", "x")}),
                  "b.safetensors: stands beside other files");
  EXPECT_IO_ERROR(data_kind(DataFiles{folder.path() / "a.txt", folder.path() / "gone.txt"}), "gone.txt: ");
  EXPECT_IO_ERROR(data_kind(folder.write("a.csv", "x")),
                  "a.csv: has the suffix '.csv', allowed: .txt, .md, .jsonl, .json, .safetensors");
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
  EXPECT_IO_ERROR(texts_of(folder.write("g.txt", "caf\xe9 x")),
                  "g.txt: byte 0xe9 at 3 is not UTF-8, expected text (of Latin-1: iconv");
  EXPECT_IO_ERROR(texts_of(folder.write("h.txt", std::string(1 << 17, 'x') + '\0')),
                  "h.txt: byte 0x00 at 131072 is NUL");
  EXPECT_IO_ERROR(texts_of(folder.write("it's.gz", "\x1f\x8b")), "it'\\''s.gz'");
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
  EXPECT_GOLDEN(test::one_line_error<io::Error>([&] { rows_of(folder.write("bad.json", text)); }));
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

constexpr const char* kChat =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
    "%}{{ eos_token }}{% if tools %}{{ tools[0].name }}{% endif %}";

struct Rows : ::testing::Test {
  RowText text(const std::string& row, RowUse use = RowUse::text) const {
    return RowTexts(folder.path(), use).text_of(io::parse_json(row, "row"), "d.jsonl:3");
  }
  void with_template() const {
    folder.write("tokenizer_config.json",
                 io::Json{{"eos_token", {{"content", "</s>"}}}, {"chat_template", kChat}}.dump());
  }
  Folder folder;
};

TEST_F(Rows, Documents) {
  EXPECT_EQ(text(R"("a")").text, "a");
  EXPECT_EQ(text(R"({"text": "a", "messages": []})").text, "a");
  EXPECT_EQ(text(R"({"text": ""})").text, "");
  EXPECT_TRUE(text(R"({"prompt": "a ", "completion": "b"})").special);
  EXPECT_EQ(text(R"({"prompt": "a ", "completion": "b"})").text, "a b");
  EXPECT_EQ(text(R"({"prompt": "a "})", RowUse::prompt).text, "a ");
}

TEST_F(Rows, MessagesGoThroughTheChatTemplate) {
  with_template();
  const auto openai =
      text(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(openai.text, "<user>q<assistant>a</s>");
  EXPECT_FALSE(openai.special);
  EXPECT_GOLDEN(this->text(text).text);
  EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "q"}]})", RowUse::prompt).text, "<user>q<assistant></s>");
  EXPECT_EQ(text(R"({"instruction": "i", "input": "x", "output": "o"})").text, "<user>i\n\nx<assistant>o</s>");
}

TEST_F(Rows, PromptsEndWhereTheAnswerBegins) {
  with_template();
  const std::string row = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  EXPECT_EQ(text(row, RowUse::prompt).text, "<user>q<assistant></s>");
  EXPECT_EQ(text(R"({"messages": [{"role": "assistant", "content": "a"}]})", RowUse::prompt).text, "<assistant>a</s>");
}

TEST_F(Rows, NothingOfARowIsDropped) {
  with_template();
  const std::string one = R"("messages": [{"role": "user", "content": "q"}])";
  EXPECT_EQ(text("{" + one + R"(, "tools": "[{\"name\": \"f\"}]"})").text, "<user>q</s>f");
  EXPECT_EQ(text("{" + one + R"(, "tools": "", "system": ""})").text, "<user>q</s>");
  EXPECT_IO_ERROR(text("{" + one + R"(, "tools": {"name": "f"}})"),
                  "d.jsonl:3: field 'tools' is a JSON object, expected an array");
  EXPECT_IO_ERROR(text("{" + one + R"(, "tools": "f"})"), "d.jsonl:3: tools");
  EXPECT_IO_ERROR(text("{" + one + R"(, "system": ["s"]})"), "'system'");
  const std::string prompt = R"({"prompt": [{"role": "user", "content": "q"}])";
  EXPECT_IO_ERROR(text(prompt + R"(, "completion": "a"})"),
                  "field 'completion' is a JSON string, expected messages, as 'prompt' is");
  EXPECT_IO_ERROR(text(prompt + "}"), "'completion'");
}

TEST_F(Rows, InstructionsWithoutATemplate) {
  EXPECT_EQ(text(R"({"instruction": "Add.", "input": "1 2", "output": "3"})").text,
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
            "Response:\n3");
  EXPECT_EQ(text(R"({"instruction": "Sing.", "input": "", "output": "la"})", RowUse::prompt).text,
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nSing.\n\n### Response:\n");
}

TEST_F(Rows, TemplatesOfAFolder) {
  const std::string row = R"({"messages": [{"role": "user", "content": "q"}]})";
  EXPECT_IO_ERROR(text(row), "d.jsonl:3: holds messages", "no chat_template");
  folder.write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(text(row).text, "json");
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "first"}, )"
               R"({"name": "default", "template": "one"}, {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(text(row).text, "one");
  EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "q"}], "tools": [{}]})").text, "tools");
  folder.write("chat_template.jinja", "jinja{{ bos_token }}");
  folder.write("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(text(row).text, "jinja<s>");
  folder.write("chat_template.jinja", "a\n{{ raise_exception('roles') }}");
  EXPECT_IO_ERROR(text(row), "d.jsonl:3: ", "chat_template.jinja:2: the template refuses: roles");
  folder.write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_IO_ERROR(text(row), "chat_template.jinja:1: the tag 'include' is not supported");
}

TEST_F(Rows, RefusedRows) {
  with_template();
  EXPECT_GOLDEN(test::one_line_error<io::Error>([&] { this->text(text); }));
}

TEST(SourceAndAnswer, EachShape) {
  const auto pair = [](const char* row) { return source_and_answer(io::parse_json(row, "row"), "d:1"); };
  const std::pair<std::string, std::string> both = {"a", "b"};
  EXPECT_EQ(pair(R"({"input": "a", "target": "b"})"), both);
  EXPECT_EQ(pair(R"({"prompt": "a", "completion": "b"})"), both);
  EXPECT_EQ(pair(R"({"instruction": "a", "output": "b"})"), both);
  EXPECT_EQ(pair(R"({"instruction": "a", "input": "x", "output": "b"})").first, "a\n\nx");
  EXPECT_IO_ERROR(pair(R"({"text": "a"})"), "has no field 'input'");
}

}  // namespace
}  // namespace fp8::text
