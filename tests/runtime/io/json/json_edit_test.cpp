// SPDX-License-Identifier: Apache-2.0
// JsonEdit of json_edit.h: what is edited, and that nothing else is.
#include "fp8/runtime/io/json/json_edit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

std::string edited(const std::string& text, const Json& edits) {
  JsonEdit edit(text, "config.json");
  edit.apply(edits);
  Json expected = parse_json(text, "text");  // the same edits of the value, by nlohmann
  for (const auto& [key, value] : edits.items()) {
    expected.erase(key);
    if (!value.is_null()) expected[key] = value;
  }
  EXPECT_EQ(nlohmann::json::parse(edit.text()), nlohmann::json::parse(expected.dump())) << edit.text();
  return edit.text();
}

TEST(JsonEdit, ReplacesAValueWhereItStands) {
  const std::string text =
      "{\n  \"rms_norm_eps\": 1e-05,\n  \"a\": \"old\",\n  \"theta\": 500000.0,\n \t\"x\" :1.50E+2\n}\n";
  EXPECT_EQ(edited(text, {{"a", 7}}),
            "{\n  \"rms_norm_eps\": 1e-05,\n  \"a\": 7,\n  \"theta\": 500000.0,\n \t\"x\" :1.50E+2\n}\n");
  EXPECT_EQ(edited(text, {{"x", "y"}}),
            "{\n  \"rms_norm_eps\": 1e-05,\n  \"a\": \"old\",\n  \"theta\": 500000.0,\n \t\"x\" :\"y\"\n}\n");
}

TEST(JsonEdit, AddsAtTheEndIndentedAsTheRest) {
  const Json value = {{"method", "fp8"}, {"list", {1, 2}}, {"none", Json::object()}};
  EXPECT_EQ(edited("{\n    \"a\": 1.0\n}", {{"q", value}}),
            "{\n    \"a\": 1.0,\n    \"q\": {\n        \"method\": \"fp8\",\n        \"list\": [\n            1,\n"
            "            2\n        ],\n        \"none\": {}\n    }\n}");
  EXPECT_EQ(edited("{\r\n\t\"a\": 1.0,\r\n\t\"b\": 2\r\n}\r\n", {{"q", {{"k", 0.5}}}}),
            "{\r\n\t\"a\": 1.0,\r\n\t\"b\": 2,\r\n\t\"q\": {\r\n\t\t\"k\": 0.5\r\n\t}\r\n}\r\n");
  EXPECT_EQ(edited(R"({"a": 1.0, "b": 2})", {{"q", value}}),
            R"({"a": 1.0, "b": 2, "q": {"method":"fp8","list":[1,2],"none":{}}})");
  EXPECT_EQ(edited(R"({"a":1.0,"b":2})", {{"q", true}}), R"({"a":1.0,"b":2,"q":true})");
  EXPECT_EQ(edited(R"({ "a": 1.0 })", {{"q", "\"\n"}}), R"({ "a": 1.0, "q": "\"\n" })");
  EXPECT_EQ(edited("  {}\n", {{"q", {1}}}), "  {\n  \"q\": [\n    1\n  ]\n}\n");
  EXPECT_EQ(edited("{ \n }", {{"q", 1}, {"r", 2}}), "{\n  \"q\": 1,\n  \"r\": 2\n}");
}

TEST(JsonEdit, ErasesWithCommaAndLine) {
  const std::string text = "{\n  \"a\": 1.0,\n  \"b\": {\"c\": [\"}\", \"\\\"]\"]},\n  \"d\": 1e-05\n}\n";
  EXPECT_EQ(edited(text, {{"a", nullptr}}), "{\n  \"b\": {\"c\": [\"}\", \"\\\"]\"]},\n  \"d\": 1e-05\n}\n");
  EXPECT_EQ(edited(text, {{"b", nullptr}}), "{\n  \"a\": 1.0,\n  \"d\": 1e-05\n}\n");
  EXPECT_EQ(edited(text, {{"d", nullptr}}), "{\n  \"a\": 1.0,\n  \"b\": {\"c\": [\"}\", \"\\\"]\"]}\n}\n");
  EXPECT_EQ(edited(text, {{"e", nullptr}}), text);
  EXPECT_EQ(edited("{\n  \"a\": 1\n}", {{"a", nullptr}}), "{\n}");
  EXPECT_EQ(edited(text, {{"a", nullptr}, {"b", nullptr}, {"d", nullptr}, {"z", 1}}), "{\n  \"z\": 1\n}\n");
}

TEST(JsonEdit, UnboundedNumbersOfPythonStay) {
  JsonEdit edit(R"({"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": 1})", "config.json");
  edit.apply({{"b", nullptr}, {"d", 2}});
  EXPECT_EQ(edit.text(), R"({"a": [0.0, Infinity], "c": NaN, "d": 2})");
}

TEST(JsonEdit, KeysAreComparedAsTheyMean) {
  EXPECT_EQ(edited(R"({"\u0061": 1, "b\"": 2})", {{"a", 3}, {"b\"", nullptr}}), R"({"\u0061": 3})");
  EXPECT_TRUE(JsonEdit(R"({"\u0061": 1})", "x").contains("a"));
  EXPECT_FALSE(JsonEdit(R"({"b": {"a": 1}})", "x").contains("a"));  // members of members are not its own
}

TEST(JsonEdit, ErasesBelowAndKeepsTheRest) {
  const std::string text =
      "{\n \"q\": 1,\n \"text\": {\n  \"eps\": 1e-05, \"q\": {\"a\": [2]},\n  \"deep\": {\"q\": 3, \"limit\": [0.0, "
      "Infinity]}\n },\n "
      "\"list\": [{\"q\": 4}]\n}\n";
  JsonEdit edit(text, "config.json");
  edit.erase_below("q");
  EXPECT_EQ(edit.text(),
            "{\n \"q\": 1,\n \"text\": {\n  \"eps\": 1e-05, \"deep\": {\"limit\": [0.0, Infinity]}\n },\n "
            "\"list\": [{\"q\": 4}]\n}\n");
}

TEST(JsonEdit, OnlyStrictObjects) {
  EXPECT_IO_ERROR(JsonEdit("[1]", "c.json"), "c.json: expected an object, found array");
  EXPECT_THAT(test::one_line_error<Error>([] { JsonEdit(R"({"a": 1, "a": 2})", "c.json"); }),
              testing::HasSubstr("c.json:1:10: duplicate key 'a'"));
  EXPECT_THAT(test::one_line_error<Error>([] { JsonEdit(R"({"a": nan})", "c.json"); }),
              testing::HasSubstr("c.json:1:7: "));
  JsonEdit edit("{}", "c.json");
  EXPECT_IO_ERROR(edit.set("a", std::nan("")), testing::HasSubstr("NaN"));
  EXPECT_IO_ERROR(edit.set("a", "\xff"), testing::HasSubstr("UTF-8"));
  EXPECT_EQ(edit.text(), "{}");
}

using JsonEditTest = IoTest;
TEST_F(JsonEditTest, ReadsAFile) {
  EXPECT_EQ(read_json_edit(put("c.json", "{\"a\": 1e-05}")).text(), "{\"a\": 1e-05}");
  EXPECT_IO_ERROR(read_json_edit(path("none.json")), testing::HasSubstr("none.json: can't open"));
}

// The first leaf in which two objects differ, where it is and what stands there.

TEST(Difference, OfALeaf) {
  const Json was = {{"a", 1}, {"option", {{"format", "fp8"}, {"rows", 3}}}};
  Json is = was;
  EXPECT_FALSE(first_difference(was, is).has_value());
  EXPECT_EQ(difference(was, is), "");
  is["option"]["format"] = "modelopt";
  const auto found = first_difference(was, is);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, "option: format");
  EXPECT_EQ(found->was, "\"fp8\"");
  EXPECT_EQ(found->is, "\"modelopt\"");
  EXPECT_EQ(difference(was, is), R"('option: format' was "fp8", is "modelopt")");
}

TEST(Difference, OfWhatStandsInOneOnly) {
  EXPECT_EQ(difference({{"a", 1}}, {{"a", 1}, {"b", {{"c", 2}}}}), "'b' was nothing, is {\"c\":2}");
  EXPECT_EQ(difference({{"a", 1}, {"b", 2}}, {{"a", 1}}), "'b' was 2, is nothing");
  EXPECT_EQ(difference({{"a", {1, 2}}}, {{"a", {1, 3}}}), "'a' was [1,2], is [1,3]");
}

TEST(Difference, ShowsNoMoreThanALine) {
  const std::string text = difference({{"a", std::string(1000, 'x')}}, {{"a", "y\n"}});
  EXPECT_LT(text.size(), 200u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace fp8::io
