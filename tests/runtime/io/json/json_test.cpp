// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/json.h"

#include <fcntl.h>

#include <cstring>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/io/json/resumable_file.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"
#include "support/golden.h"
#include "support/threads.h"

namespace fp8::io {
namespace {

using JsonTest = IoTest;
using JournalTest = IoTest;

TEST(Json, RefusesWithLineAndColumn) {
  const auto refused = [](const std::string& text) {
    return test::one_line_error<Error>([&] { parse_json(text, "f.json"); });
  };
  EXPECT_GOLDEN(refused(text));
  const std::pair<std::string, std::string> others[] = {
      {"", "1:1: expected a value, found end of text"},
      {std::string("{}\0", 3), "1:3: text after the end of the value: '\\x00'"},
      {"\xef\xbb\xbf{}", "1:1: a byte order mark is not allowed"},
      {"[\"a\xff\"]", "1:4: invalid UTF-8 byte '\\xff' in a string"},
      {"[\"\xc0\xaf\"]", "1:3: invalid UTF-8 byte '\\xc0' in a string"},
      {"[\"\xed\xa0\x80\"]", "1:3: invalid UTF-8 byte '\\xed' in a string"},
      {"[" + std::string(400, '9') + "e-5]", "1:2: number '" + std::string(120, '9') + "...' is out of range"},
      {std::string(65, '['), "1:65: nested deeper than 64 levels"},
      {std::string(1'000'000, '['), "1:65: nested deeper than 64 levels"},
  };
  for (const auto& [text, message] : others) EXPECT_EQ(refused(text), "f.json:" + message);
}

TEST(Json, UnknownEscapeIsNamed) {
  EXPECT_THAT(test::one_line_error<Error>([] { parse_json(R"({"a": "\x41"})", "f"); }),
              testing::HasSubstr("f:1:8: unknown escape"));
  EXPECT_IO_ERROR(parse_json("[\"\\", "f"), testing::HasSubstr("f:1:3: unknown escape"));
}

TEST(Json, WhatPythonWritesForUnboundedNumbers) {
  // json.dumps({"a": [0.0, float("inf")], "b": {"c": -float("inf"), "d": float("nan")}, "e": "NaN \xe9"})
  const std::string text = R"({"a": [0.0, Infinity], "b": {"c": -Infinity, "d": NaN}, "e": "NaN \u00e9"})";
  const Json value = parse_python_json(text, "f");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(value["a"][1], kInfinity);
  EXPECT_EQ(value["b"]["c"], -kInfinity);
  EXPECT_TRUE(std::isnan(value["b"]["d"].get<double>()));
  std::string plain = text;  // json.dumps(..., separators=(",", ":"))
  for (const char* space : {", ", ": "})
    for (std::size_t at; (at = plain.find(space)) != std::string::npos;) plain.erase(at + 1, 1);
  EXPECT_EQ(python_text(value), plain);
  EXPECT_IO_ERROR(parse_python_json("[nan]", "f"), testing::HasSubstr("f:1:2: nan is not allowed"));
  EXPECT_IO_ERROR(parse_python_json("[Infinity1]", "f"), testing::HasSubstr("f:1:10: expected"));
}

TEST(Json, ManyKeysOneTwice) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += "\"k" + std::to_string(i) + "\":0,\n";
  EXPECT_EQ(parse_json(text + "\"k\":0}", "f").size(), 100'001u);
  EXPECT_IO_ERROR(parse_json(text + "\"k7\":0}", "f"), "f:100001:1: duplicate key 'k7'");
}

TEST(Json, SixtyFourLevels) { EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "f")); }

TEST(Json, TooManyValues) {
  std::string text = "[0";
  for (int i = 0; i < 1 << 24; ++i) text += ",0";
  EXPECT_IO_ERROR(parse_json(text + "]", "f"), testing::HasSubstr("more than 16777216 values"));
}

TEST(Json, ValuesAsTheStandardHasThem) {
  const Json value = parse_json(
      " {\"z\": [1, -2, 2.5e-3, true, false, null],\r\n\t\"a\": "
      "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00f6\\ud83d\\ude00\xc3\xb6\"} ",
      "f");
  EXPECT_EQ(value.items().begin().key(), "z");  // order kept
  EXPECT_EQ(value["z"][0], 1);
  EXPECT_EQ(value["z"][1], -2);
  EXPECT_EQ(value["z"][2], 0.0025);
  EXPECT_EQ(value["z"][3], true);
  EXPECT_EQ(value["z"][4], false);
  EXPECT_TRUE(value["z"][5].is_null());
  EXPECT_EQ(value["a"], "\"\\/\b\f\n\r\t\xc3\xb6\xf0\x9f\x98\x80\xc3\xb6");
}

TEST(Json, NumbersKeepTheirKind) {
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(parse_json("18446744073709551615", "f").is_number_unsigned());
  EXPECT_EQ(parse_json("-9223372036854775808", "f").get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(parse_json("18446744073709551616", "f").is_number_float());
  EXPECT_EQ(parse_json("18446744073709551616", "f").get<double>(), 0x1p64);
  EXPECT_TRUE(parse_json("1.0", "f").is_number_float());
  EXPECT_TRUE(std::signbit(parse_json("-0", "f").get<double>()));
  EXPECT_EQ(parse_json("5e-324", "f").get<double>(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parse_json("1.7976931348623157e308", "f").get<double>(), std::numeric_limits<double>::max());
  EXPECT_EQ(parse_json("1e-999", "f").get<double>(), 0.0);
  EXPECT_TRUE(std::signbit(parse_json("-0.00001e-999999999999", "f").get<double>()));
  EXPECT_EQ(parse_json("0e999", "f").get<double>(), 0.0);
}

TEST_F(JsonTest, WritesShortestAndEndsTheLine) {
  write_json(path("o.json"), parse_json(R"({"b": 0.1, "a": [1e-05, 3.0, 1e300], "n": null})", "f"));
  EXPECT_EQ(bytes_of(path("o.json")),
            "{\n  \"b\": 0.1,\n  \"a\": [\n    1e-05,\n    3.0,\n    1e+300\n  ],\n  \"n\": null\n}\n");
  write_json(path("o.json"), parse_json("{\"b\": [1]}", "f"), -1);
  EXPECT_EQ(bytes_of(path("o.json")), "{\"b\":[1]}\n");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"o.json"}));
}

TEST_F(JsonTest, EveryFloatComesBack) {
  Json values = Json::array();
  std::uint64_t state = 1;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    double value;
    std::memcpy(&value, &state, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
  }
  write_json(path("o.json"), values);
  EXPECT_EQ(read_json(path("o.json")), values);
}

TEST_F(JsonTest, RefusesToWriteWhatJsonCannotHold) {
  const std::string name = path("o.json").string();
  Json value = {{"scales", {1.0, std::nan("")}}};
  EXPECT_IO_ERROR(write_json(name, value), name + ": key 'scales' is NaN or infinite, which JSON can't hold");
  value = {{"s", "\xff"}};
  EXPECT_IO_ERROR(write_json(name, value), name + ": a string or key to be written is not UTF-8");
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(JsonTest, ReadNamesTheFile) {
  const auto file = put("config.json", "{\n  \"a\": 1,\n  \"a\": 2\n}");
  EXPECT_IO_ERROR(read_json(file), file.string() + ":3:3: duplicate key 'a'");
}

// Members one by one, against the whole value at once.
TEST(ParseJsonMembers, HandsOverTheMembersOfOneObject) {
  const std::string text =
      R"({"metadata": {"n": 1}, "map": {"b": [1, {"c": null}], "a": "x", "b": 2}, "last": {"map": {"d": 1}}})";
  std::vector<std::pair<std::string, Json>> members;
  const auto take = [&](std::string&& key, Json&& value) { members.emplace_back(std::move(key), std::move(value)); };
  const Json rest = parse_json_members(text, "t", "map", take);
  EXPECT_EQ(rest, Json::parse(R"({"metadata": {"n": 1}, "map": {}, "last": {"map": {"d": 1}}})"));
  EXPECT_EQ(members, (std::vector<std::pair<std::string, Json>>{
                         {"b", Json::parse(R"([1, {"c": null}])")}, {"a", "x"}, {"b", 2}}));
  members.clear();
  EXPECT_EQ(parse_json_members(R"({"x": 1, "y": {"x": 2}})", "t", "", take), Json::object());
  EXPECT_EQ(members, (std::vector<std::pair<std::string, Json>>{{"x", 1}, {"y", Json{{"x", 2}}}}));
  members.clear();
  EXPECT_EQ(parse_json_members("[1]", "t", "", take), Json::parse("[1]"));
  EXPECT_EQ(parse_json_members(R"({"map": 3})", "t", "map", take), Json::parse(R"({"map": 3})"));
  EXPECT_TRUE(members.empty());
}

TEST(ParseJsonMembers, RefusesWhatParseJsonRefuses) {
  const auto ignore = [](std::string&&, Json&&) {};
  for (const char* text : {R"({"m": {"a": 1,}})", R"({"m": {"a" 1}})", R"({"m": {"a": {"x": 1, "x": 2}}})",
                           R"({"m": {}, "m": {}})", R"({"m": {"a": 1})", R"({"m": {1: 2}})"})
    EXPECT_IO_ERROR(parse_json_members(text, "t", "m", ignore),
                    test::one_line_error<Error>([&] { parse_json(text, "t"); }));
}

TEST(ParseJsonMembers, OneMemberMayNotFillTheMemory) {
  const auto ignore = [](std::string&&, Json&&) {};
  const auto member = [](int values) {  // the array and its items
    std::string text = "[0";
    for (int i = 2; i < values; ++i) text += ",0";
    return text + "]";
  };
  const std::string fits = member(1 << 20);
  EXPECT_EQ(parse_json_members("{\"a\":" + fits + ",\"b\":" + fits + "}", "t", "", ignore), Json::object());
  EXPECT_IO_ERROR(parse_json_members("{\"a\":1,\"b\":" + member((1 << 20) + 1) + "}", "t", "", ignore),
                  testing::HasSubstr("more than 1048576 values in one member"));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Numbers, WhatJsonCannotHoldIsNullAndComesBackAsNan) {
  for (const double value : {0.0, -1.5, 1e300, 5e-324}) {
    EXPECT_EQ(number_or_null(value), Json(value));
    EXPECT_EQ(number_or_nan(parse_json(number_or_null(value).dump(), "here")), value);
  }
  for (const double value : {kInfinity, -kInfinity, kNan}) {
    EXPECT_TRUE(number_or_null(value).is_null());
    EXPECT_TRUE(std::isnan(number_or_nan(number_or_null(value))));
  }
  EXPECT_THROW(number_or_nan("1"), Json::exception);
}

TEST(Numbers, TextReadsBack) {
  EXPECT_EQ(number_text(2), "2.0");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(kInfinity), "inf");
  EXPECT_EQ(number_text(-kInfinity), "-inf");
  EXPECT_EQ(number_text(kNan), "nan");
}

// JsonEdit of json_edit.h: what is edited, and that nothing else is.

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

// A journal of a file that was cut short at any byte, or damaged in any byte.

std::vector<std::string> found(const std::filesystem::path& path) {
  std::vector<std::string> texts;
  const Journal journal(path);
  for (const auto& entry : journal.entries()) texts.push_back(entry.dump());
  return texts;
}

TEST_F(JournalTest, KeepsWhatWasAppended) {
  {
    Journal journal(path("j"));
    EXPECT_TRUE(journal.entries().empty());
    journal.append({{"identity", 1}});
    journal.append({{"unit", "a\n\"b\""}});
  }
  const std::string text = "{\"unit\":\"a\\n\\\"b\\\"\"}";
  EXPECT_THAT(bytes_of(path("j")),
              testing::EndsWith("{\"xxh64\":\"" + checksum_text(checksum(text)) + "\",\"entry\":" + text + "}\n"));
  EXPECT_THAT(found(path("j")), testing::ElementsAre("{\"identity\":1}", text));
  Journal journal(path("j"));
  journal.clear();
  EXPECT_TRUE(journal.entries().empty());
  journal.append({{"c", 3}});
  EXPECT_THAT(found(path("j")), testing::ElementsAre("{\"c\":3}"));
}

TEST_F(JournalTest, CutAnywhereItKeepsTheWholeLines) {
  {
    Journal journal(path("j"));
    for (int i = 0; i < 3; ++i) journal.append({{"unit", i}});
  }
  const std::string whole = bytes_of(path("j"));
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    put("j", whole.substr(0, size));
    const auto lines =
        static_cast<std::size_t>(std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size), '\n'));
    Journal journal(path("j"));
    ASSERT_EQ(journal.entries().size(), lines) << size;
    journal.append({{"unit", 9}});
    const auto after = found(path("j"));
    ASSERT_EQ(after.size(), lines + 1) << size;
    EXPECT_EQ(after.back(), "{\"unit\":9}");
  }
}

TEST_F(JournalTest, ADamagedByteLosesItsLineOnly) {
  {
    Journal journal(path("j"));
    for (int i = 0; i < 3; ++i) journal.append({{"unit", i}});
  }
  const std::string whole = bytes_of(path("j"));
  const std::size_t line = whole.size() / 3;
  for (std::size_t at = line; at + 1 < 2 * line; ++at) {  // all of the second but its end
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    put("j", damaged);
    if (damaged[at] == '\n') continue;
    Journal journal(path("j"));
    EXPECT_EQ(journal.damaged(), 1u) << at;
    ASSERT_EQ(journal.entries().size(), 2u) << at;
    EXPECT_EQ(journal.entries()[0]["unit"], 0);
    EXPECT_EQ(journal.entries()[1]["unit"], 2);
  }
}

TEST_F(JournalTest, LinesOfManyThreadsStayWhole) {
  {
    Journal journal(path("j"));
    test::on_threads(4, [&](int t) {
      for (int i = 0; i < 200; ++i) journal.append({{"thread", t}, {"i", i}});
    });
  }
  Journal journal(path("j"));
  EXPECT_EQ(journal.entries().size(), 800u);
  EXPECT_EQ(journal.damaged(), 0u);
}

TEST_F(JournalTest, WhatIsNoFileIsRefused) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_IO_ERROR(Journal journal(path("folder")), HasSubstr("folder"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_IO_ERROR(Journal journal(path("link")), HasSubstr("link"));
  EXPECT_FALSE(std::filesystem::exists(path("elsewhere")));
}

// Files filled in place: their size, what survives from one run to the next, full disks, copies within the kernel.

using PlacedFileTest = IoTest;

TEST_F(PlacedFileTest, HasItsSizeAndKeepsItsBytes) {
  {
    PlacedFile file(path("f"), 10, "shown");
    EXPECT_EQ(bytes_of(path("f")), std::string(10, '\0'));
    file.write(7, "xyz", 3);
    file.write(0, "ab", 2);
  }
  {
    PlacedFile file(path("f"), 10, "shown");  // another run continues
    char text[3];
    file.read(7, text, 3);
    EXPECT_EQ(std::string(text, 3), "xyz");
    file.write(2, "c", 1);
    EXPECT_IO_ERROR(file.read(9, text, 2), HasSubstr("shown: ends at byte 10"));
  }
  EXPECT_EQ(bytes_of(path("f")), std::string("abc\0\0\0\0xyz", 10));
  PlacedFile smaller(path("f"), 4, "shown");
  EXPECT_EQ(bytes_of(path("f")), std::string("abc\0", 4));
  struct stat status;
  PlacedFile large(path("large"), 1 << 20, "shown");
  ASSERT_EQ(::stat(path("large").c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);  // reserved, not a hole
}

TEST_F(PlacedFileTest, CopiesRangesOfOtherFiles) {
  std::string source(300000, '\0');
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 31 % 253);
  put("in", source);
  const Descriptor in = open_regular(path("in"));
  PlacedFile file(path("f"), 200000, "shown");
  if (!file.copy(in.get(), 12345, 67, 100000)) GTEST_SKIP() << "no copy_file_range here";
  EXPECT_EQ(bytes_of(path("f")).substr(67, 100000), source.substr(12345, 100000));
  EXPECT_FALSE(file.copy(in.get(), 299990, 0, 20));  // the input ends before
  EXPECT_FALSE(file.copy(-1, 0, 0, 20));
}

TEST_F(PlacedFileTest, AFullDiskShowsAtOnce) {
  std::filesystem::create_directory(path("disk"));
  const auto message = on_small_disk(path("disk"), [&] {
    return test::one_line_error<Error>([&] { PlacedFile file(path("disk/f"), 2 << 20, "shown"); });
  });
  if (!message.has_value()) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(*message, "shown: no space left on device (needed 2097152 bytes)");
}

TEST_F(PlacedFileTest, RefusesWhatIsNoFileOrTooLarge) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_IO_ERROR(PlacedFile file(path("folder"), 1, "shown"), HasSubstr("shown: can't create"));
  std::filesystem::create_symlink(path("elsewhere"), path("link"));
  EXPECT_IO_ERROR(PlacedFile file(path("link"), 1, "shown"), HasSubstr("shown: can't create"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_IO_ERROR(PlacedFile file(path("pipe"), 1, "shown"), HasSubstr("shown: "));
  EXPECT_IO_ERROR(PlacedFile file(path("f"), std::uint64_t{1} << 63, "shown"),
                  HasSubstr("larger than the file size limit"));
  const FileSizeLimit limit(1000);
  EXPECT_IO_ERROR(PlacedFile file(path("g"), 1001, "shown"),
                  HasSubstr("shown: larger than the file size limit (needed 1001 bytes)"));
}

}  // namespace
}  // namespace fp8::io
