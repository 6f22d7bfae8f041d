// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/yaml/yaml.h"

#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::io {
namespace {

Json parsed(const std::string& text) { return parse_yaml(text, "run.yaml").value; }

std::string yaml_error(const std::string& text) {
  return test::error_of<Error>([&] { parse_yaml(text, "run.yaml"); });
}

void expect_scalar(const std::string& text, const Json& value) {
  EXPECT_EQ(yaml_scalar(text), value) << text;
  EXPECT_EQ(yaml_scalar(text).type(), value.type()) << text;
}

/// Rows of a scalar and its value.
template <class Number>
void expect_numbers(const std::string& rows) {
  std::istringstream in(rows);
  Number value{};
  for (std::string text; in >> text >> value;) expect_scalar(text, value);
  EXPECT_TRUE(in.eof()) << rows;
}

// As PyYAML 6 has them, but for 1e-3, 1e3, 0o17 and 1:30, which are YAML 1.2's.
TEST(YamlScalar, TypesOfPyYaml) {
  for (const char* text : {"~", "null", "Null", "NULL", ""}) expect_scalar(text, nullptr);
  for (const char* text : {"true", "True", "TRUE", "yes", "Yes", "on"}) expect_scalar(text, true);
  for (const char* text : {"OFF", "no"}) expect_scalar(text, false);
  for (const char* text : {"nUll",  "tRue",  "y", "n", "08", "_1",  "0x",  "1e",       "a", "1.2.3",
                           "12abc", "1e999", ".", "+", "-.", "inf", "nan", "infinity", "=", "1:30"})
    expect_scalar(text, text);
  expect_numbers<std::int64_t>(
      "12 12 -12 -12 +12 12 1_000 1000 0x1F 31 017 15 0b101 5 -0x10 -16 0 0 -0 0 1__0 10 0o17 15 "
      "9223372036854775807 9223372036854775807");
  expect_numbers<std::uint64_t>("9223372036854775808 9223372036854775808");
  expect_numbers<double>("1.5 1.5 1. 1 .5 0.5 1.5e+3 1500 -.5 -0.5 1_0.5 10.5 0. 0 1e-3 1e-3 1e3 1000");
  const double inf = std::numeric_limits<double>::infinity();
  for (const char* text : {".inf", "+.inf", ".Inf"}) expect_scalar(text, inf);
  expect_scalar("-.INF", -inf);
  EXPECT_TRUE(std::isnan(yaml_scalar(".NaN").get<double>()));
}

TEST(Yaml, IsATreeWithLines) {
  const auto run = parse_yaml(
      "# a comment\ntrainer:\n  max_steps: 100\n  callbacks: [a, {b: 1}]\n'x/y':\n- \"1\"\n- |\n  two\n  lines\n",
      "run.yaml");
  EXPECT_EQ(run.value, Json::parse(R"({"trainer": {"max_steps": 100, "callbacks": ["a", {"b": 1}]},
                                       "x/y": ["1", "two\nlines\n"]})"));
  EXPECT_EQ(run.place("/trainer"), "run.yaml:2");
  EXPECT_EQ(run.place("/trainer/max_steps"), "run.yaml:3");
  EXPECT_EQ(run.place("/trainer/callbacks/1/b"), "run.yaml:4");
  EXPECT_EQ(run.place("/x~1y/1"), "run.yaml:7");
  EXPECT_EQ(run.place("/x~1y/1/nothing"), "run.yaml:7");
  EXPECT_EQ(run.place("/nothing"), "run.yaml:2");
  EXPECT_EQ(parsed(""), nullptr);
  EXPECT_EQ(parsed("a:\nb: !!str 5\nc: !!float 5"), Json::parse(R"({"a": null, "b": "5", "c": 5.0})"));
  EXPECT_EQ(parsed("{\"a\": [1, 2.5, true, null, \"x\"]}"), Json::parse(R"({"a": [1, 2.5, true, null, "x"]})"));
}

TEST(Yaml, AnchorsAndMergeKeys) {
  EXPECT_EQ(parsed("a: &x {p: 1, q: [2]}\nb: *x\nc: {<<: *x, p: 5, r: 3}\n"),
            Json::parse(R"({"a": {"p": 1, "q": [2]}, "b": {"p": 1, "q": [2]}, "c": {"p": 5, "r": 3, "q": [2]}})"));
  EXPECT_EQ(parsed("a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc: {<<: [*x, *y]}\n")["c"], Json::parse(R"({"p": 1, "q": 2})"));
  EXPECT_EQ(parsed("k: &name word\n*name : 1"), Json::parse(R"({"k": "word", "word": 1})"));
  EXPECT_EQ(parsed("'<<': {p: 1}"), Json::parse(R"({"<<": {"p": 1}})"));
}

TEST(Yaml, WhatIsNoTreeIsRefusedByLine) {
  EXPECT_GOLDEN(yaml_error(text));
  EXPECT_THAT(yaml_error("a:\n\tb: 1\n"), HasSubstr("run.yaml:2:"));
  EXPECT_THAT(yaml_error("a: \"\xff\""), HasSubstr("run.yaml:1:"));
  EXPECT_THAT(yaml_error("a: 1\nb: \x01"), HasSubstr("run.yaml:2:4: control characters are not allowed"));
  EXPECT_THAT(yaml_error("\xff\xfe"
                         "a"),
              HasSubstr("run.yaml:1:"));  // UTF-16 is none
  EXPECT_THAT(yaml_error(std::string(65, '[') + std::string(65, ']')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(yaml_error(std::string(100000, '[')), HasSubstr("run.yaml:1:"));
}

// 2^30 values in a page of text.
TEST(Yaml, AliasesOfAliasesEndAtTheLimit) {
  std::string values = "a0: &a0 [x, x, x, x, x, x, x, x]\n", text = "a0: &a0 \"" + std::string(1 << 16, 'x') + "\"\n";
  for (int i = 1; i < 10; ++i) {
    const std::string before = "*a" + std::to_string(i - 1), name = "a" + std::to_string(i);
    std::string list = before;
    for (int k = 1; k < 8; ++k) list += ", " + before;
    values += name + ": &" + name + " [" + list + "]\n";
    text += name + ": &" + name + " [" + list + "]\n";
  }
  EXPECT_THAT(yaml_error(values), HasSubstr("more than 262144 values, aliases followed"));
  EXPECT_THAT(yaml_error(text), HasSubstr("bytes of text, aliases followed"));
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 70; ++i)
    deep += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + "]\n";
  EXPECT_THAT(yaml_error(deep), HasSubstr("nested deeper than 64 levels"));
}

TEST(Yaml, ReadsFilesAndJson) {
  const test::TempDir folder;
  std::ofstream(folder / "a.json") << "{\n  \"a\": 1,\n  \"b\": {\"c\": 2}\n}\n";
  const auto json = read_yaml(folder / "a.json");
  EXPECT_EQ(json.value["b"]["c"], 2);
  EXPECT_EQ(json.place("/b/c"), (folder / "a.json").string() + ":3");
  std::ofstream(folder / "b.json") << "a: 1\n";
  EXPECT_THROW(read_yaml(folder / "b.json"), Error);  // strict
  std::ofstream(folder / "c.yaml") << "a: 1\n";
  EXPECT_EQ(read_yaml(folder / "c.yaml").value["a"], 1);
  EXPECT_THROW(read_yaml(folder / "none.yaml"), Error);
  std::ofstream(folder / "large.yaml") << std::string((1 << 20) + 1, '#');
  EXPECT_THROW(read_yaml(folder / "large.yaml"), Error);
}

TEST(YamlText, IsReadBackAsItWas) {
  const Json value = Json::parse(
      R"({"text": ["true", "5", "1e-3", "~", "", " lead", "a: b", "# no", "- x", "<<", "new\nline",
             "ends\r", "\r\n\t\f", "ü", "'q'", "\"", "0o7", "...", "a:", "a:b", "a#b", "../x", "%x", "&x", "=",
             "\u0085\u2028\ufeff\u007f", "😀", "back\\slash"],
    "number": [1, -5, 1.0, 0.1, 1e-30, 1e300, 9223372036854775807], "bool": [true, false, null],
    "empty": {"map": {}, "list": []},
    "nested": [[1, [2]], {"a": {"b": [{"c": 1}, {"d": 2}]}}], "": 1, "5": 2, "yes": 3, "<<": 4})");
  const std::map<std::string, std::string> comments = {{"/text", "of a list"},
                                                       {"/number/1", "five: less"},
                                                       {"/empty/map", "# empty"},
                                                       {"/nested/1/a", "deep"},
                                                       {"/yes", "default"}};
  for (const auto& with : {std::map<std::string, std::string>{}, comments}) {
    const std::string text = yaml_text(value, with);
    const Json back = parsed(text);
    EXPECT_EQ(back, value) << text;
    EXPECT_TRUE(back["number"][2].is_number_float());
  }
  EXPECT_EQ(yaml_text(Json::parse(R"({"a": {"b": 1, "c": [2]}})"), {{"/a/b", "run.yaml:3"}, {"/a/c/0", "default"}}),
            "a:\n  b: 1  # run.yaml:3\n  c:\n    - 2  # default\n");
  EXPECT_EQ(yaml_text(Json::object({{"a", std::numeric_limits<double>::infinity()}})), "a: .inf\n");
  EXPECT_EQ(yaml_text(5), "5\n");
  const Json long_key = {{std::string(2000, 'k'), {{"a", {1, 2}}}}, {std::string(1100, '#'), 1}};
  EXPECT_EQ(parsed(yaml_text(long_key)), long_key);
}

}  // namespace
}  // namespace fp8::io
