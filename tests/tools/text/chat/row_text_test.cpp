// SPDX-License-Identifier: Apache-2.0

#include "fp8/tools/text/chat/chat_template.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;

constexpr const char* kChat =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
    "%}{{ eos_token }}{% if tools %}{{ tools[0].name }}{% endif %}";

class Rows : public ::testing::Test {
 protected:
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
  EXPECT_EQ(
      text(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"})")
          .text,
      "<system>s<user>q<assistant>a</s>");
  EXPECT_EQ(
      text(
          R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
                     "tools": [{"name": "f"}]})")
          .text,
      "<user>ab</s>f");
  EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "q"}]})", RowUse::prompt).text, "<user>q<assistant></s>");
  EXPECT_EQ(
      text(R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})")
          .text,
      "<user>q<assistant>a</s>");
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
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text("{" + one + R"(, "tools": {"name": "f"}})"); }),
              HasSubstr("d.jsonl:3: field 'tools' is a JSON object, expected an array"));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text("{" + one + R"(, "tools": "f"})"); }),
              HasSubstr("d.jsonl:3: tools"));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text("{" + one + R"(, "system": ["s"]})"); }),
              HasSubstr("'system'"));
  const std::string prompt = R"({"prompt": [{"role": "user", "content": "q"}])";
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text(prompt + R"(, "completion": "a"})"); }),
              HasSubstr("field 'completion' is a JSON string, expected messages, as 'prompt' is"));
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text(prompt + "}"); }), HasSubstr("'completion'"));
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
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text(row); }),
              AllOf(HasSubstr("d.jsonl:3: holds messages"), HasSubstr("no chat_template")));
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
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text(row); }),
              AllOf(HasSubstr("d.jsonl:3: "), HasSubstr("chat_template.jinja:2: the template refuses: roles")));
  folder.write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_THAT(test::one_line_error<io::Error>([&] { text(row); }),
              HasSubstr("chat_template.jinja:1: the tag 'include' is not supported"));
}

TEST_F(Rows, RefusedRows) {
  with_template();
  const std::pair<const char*, const char*> kRefused[] = {
      {"7", "d.jsonl:3: is a JSON number, expected a string, or an object"},
      {R"({"txt": "a"})", "has no field 'text', found 'txt', allowed: text, messages"},
      {R"({"text": 7})", "field 'text' is a JSON number, expected a string"},
      {R"({"prompt": "a"})", "has no field 'completion'"},
      {R"({"instruction": "a"})", "has no field 'output'"},
      {R"({"messages": []})", "expected an array of messages"},
      {R"({"messages": "a"})", "expected an array of messages"},
      {R"({"messages": [{"content": "a"}]})", "d.jsonl:3: message 1: has no field 'role'"},
      {R"({"messages": [{"role": "user"}]})", "message 1: has no content"},
      {R"({"messages": [{"role": "user", "content": 7}]})", "its content is a JSON number"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "a part of type 'image_url', allowed: text"},
      {R"({"conversations": [{"from": "narrator", "value": "a"}]})", "'from' is 'narrator', allowed: system, human"}};
  for (const auto& [row, message] : kRefused)
    EXPECT_THAT(test::one_line_error<io::Error>([&] { text(row); }), HasSubstr(message)) << row;
}

TEST(SourceAndAnswer, EachShape) {
  const auto pair = [](const char* row) { return source_and_answer(io::parse_json(row, "row"), "d:1"); };
  const std::pair<std::string, std::string> both = {"a", "b"};
  EXPECT_EQ(pair(R"({"input": "a", "target": "b"})"), both);
  EXPECT_EQ(pair(R"({"prompt": "a", "completion": "b"})"), both);
  EXPECT_EQ(pair(R"({"instruction": "a", "output": "b"})"), both);
  EXPECT_EQ(pair(R"({"instruction": "a", "input": "x", "output": "b"})").first, "a\n\nx");
  EXPECT_THAT(test::one_line_error<io::Error>([&] { pair(R"({"text": "a"})"); }), HasSubstr("has no field 'input'"));
}

}  // namespace
}  // namespace fp8::text
