// SPDX-License-Identifier: Apache-2.0

#include "fp8/tools/models/base/model_config.h"
#include "support/golden.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

TEST(ConfigReader, IntegersInRange) {
  const io::Json json = {{"low", 1},
                         {"high", 9},
                         {"null", nullptr},
                         {"real", 4.0},
                         {"text", "4"},
                         {"bool", true},
                         {"huge", std::numeric_limits<std::uint64_t>::max()},
                         {"negative", -1}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.integer("low", 1, 9), 1);
  EXPECT_EQ(reader.integer("high", 1, 9), 9);
  EXPECT_EQ(reader.integer("null", 1, 9, 5), 5);
  EXPECT_EQ(reader.integer("absent", 1, 9, 5), 5);
  for (const char* key : {"real", "text", "bool", "huge", "negative", "null", "absent"})
    EXPECT_ERROR(io::Error, reader.integer(key, 1, 8), std::string("[models] f.json: key '") + key + "': ");
  EXPECT_ERROR(io::Error, reader.integer("high", 1, 8), "found 9, allowed: an integer from 1 to 8");
  EXPECT_ERROR(io::Error, reader.integer("huge", 1, 8), "found 18446744073709551615");
  EXPECT_ERROR(io::Error, reader.integer("absent", 1, 8), "missing, allowed");
}

TEST(ConfigReader, Numbers) {
  const io::Json json = {{"one", 1},
                         {"half", 0.5},
                         {"inf", std::numeric_limits<double>::infinity()},
                         {"nan", std::numeric_limits<double>::quiet_NaN()},
                         {"text", "1"}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.number("one", 0, 1), 1);
  EXPECT_EQ(reader.number("half", 0, 1), 0.5);
  EXPECT_EQ(reader.number("absent", 0, 1, 0.25), 0.25);
  for (const char* key : {"inf", "nan", "text", "absent"})
    EXPECT_ERROR(io::Error, reader.number(key, 0, 1), "allowed: a number from 0");
}

TEST(ConfigReader, WordsAndBooleans) {
  const io::Json json = {{"word", "b"}, {"flag", true}, {"one", 1}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.word("word", {"a", "b"}), "b");
  EXPECT_EQ(reader.word("absent", {"a", "b"}, "a"), "a");
  EXPECT_EQ(error_of<io::Error>([&] { reader.word("word", {"a", "c"}); }),
            "[models] f.json: key 'word': found \"b\", allowed: a, c");
  EXPECT_TRUE(reader.boolean("flag", false));
  EXPECT_TRUE(reader.boolean("absent", true));
  EXPECT_ERROR(io::Error, reader.boolean("one", true), "found 1, allowed: true or false");
}

TEST(ConfigReader, TokenIds) {
  const io::Json json = {{"one", 3},
                         {"two", {3, 4}},
                         {"none", nullptr},
                         {"mixed", {3, "4"}},
                         {"negative", -3},
                         {"large", std::int64_t{1} << 40},
                         {"many", std::vector<int>(300, 1)}};
  const ConfigReader reader(json, "f.json");
  EXPECT_THAT(reader.token_ids("one"), ElementsAre(3));
  EXPECT_THAT(reader.token_ids("two"), ElementsAre(3, 4));
  EXPECT_THAT(reader.token_ids("none"), IsEmpty());
  for (const char* key : {"mixed", "negative", "large", "many"})
    EXPECT_ERROR(io::Error, reader.token_ids(key), "a token id");
}

TEST(ConfigReader, Indices) {
  const io::Json json = {{"some", io::Json::array({0, 4})},
                         {"none", io::Json::array()},
                         {"past", io::Json::array({5})},
                         {"negative", io::Json::array({-1})},
                         {"text", "0"},
                         {"many", {0, 1, 2, 3, 4, 0}}};
  const ConfigReader reader(json, "f.json");
  EXPECT_THAT(*reader.indices("some", 5), ElementsAre(0, 4));
  EXPECT_THAT(*reader.indices("none", 5), IsEmpty());
  EXPECT_EQ(reader.indices("absent", 5), std::nullopt);
  for (const char* key : {"past", "negative", "text", "many"})
    EXPECT_ERROR(io::Error, reader.indices(key, 5), "allowed: a list of integers from 0 to 4");
}

TEST(ConfigReader, Dtypes) {
  const io::Json both = {{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}, old = {{"torch_dtype", "bfloat16"}},
                 none = io::Json::object(), other = {{"dtype", "int8"}};
  EXPECT_EQ(ConfigReader(both, "f").dtype(), c10::kHalf);
  EXPECT_EQ(ConfigReader(old, "f").dtype(), c10::kBFloat16);
  EXPECT_EQ(ConfigReader(none, "f").dtype(), std::nullopt);
  EXPECT_ERROR(io::Error, ConfigReader(other, "f").dtype(), "key 'dtype': found \"int8\"");
}

TEST(ConfigReader, ObjectsHaveTheirPath) {
  const io::Json json = {{"rope", {{"factor", "x"}, {"deep", {{"n", 7}}}}}, {"list", {1}}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.object("rope").object("deep").integer("n", 0, 9), 7);
  EXPECT_ERROR(io::Error, reader.object("rope").number("factor", 0, 1), "key 'rope.factor': found \"x\"");
  EXPECT_ERROR(io::Error, reader.object("list"), "key 'list': found [1], allowed: an object");
  EXPECT_ERROR(io::Error, ConfigReader(io::Json(3), "f.json"), "f.json: found 3, expected a JSON object");
}

// Numbers as JSON files may have them, up to the ends of what a type holds; where lists end; whole messages.

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(),
                       kMost = std::numeric_limits<std::int64_t>::max();

/// {"k": VALUE} as a file has it.
io::Json file_with(const std::string& value) { return io::parse_json("{\"k\": " + value + "}", "f.json"); }

/// The message behind "[models] f.json: key 'k': "; empty: no error.
template <class F>
std::string refused_by(const io::Json& json, F&& read) {
  const ConfigReader reader(json, "f.json");
  const std::string text = error_of([&] { read(reader); }), start = "[models] f.json: key 'k': ";
  if (text.empty()) return text;
  EXPECT_THAT(text, StartsWith(start));
  return text.substr(start.size());
}

TEST(ConfigReaderEdges, IntegersToTheLastBit) {
  const auto integer = [](const std::string& value, std::int64_t low, std::int64_t high) {
    const io::Json json = file_with(value);
    return ConfigReader(json, "f.json").integer("k", low, high);
  };
  EXPECT_EQ(integer("9223372036854775807", 0, kMost), kMost);
  EXPECT_EQ(integer("-9223372036854775808", kLeast, 0), kLeast);
  EXPECT_EQ(integer("-1", -1, 1), -1);
  EXPECT_EQ(integer("0", 0, 0), 0);
  const auto read = [](const ConfigReader& reader) { reader.integer("k", 0, kMost); };
  EXPECT_GOLDEN(refused_by(file_with(text), read));
}

TEST(ConfigReaderEdges, NumbersToTheLastBit) {
  const auto number = [](const std::string& value, double low, double high) {
    const io::Json json = file_with(value);
    return ConfigReader(json, "f.json").number("k", low, high);
  };
  EXPECT_EQ(number("1.7976931348623157e308", 0, std::numeric_limits<double>::max()),
            std::numeric_limits<double>::max());
  EXPECT_EQ(number("18446744073709551615", 0, 1e20), 18446744073709551616.0);
  EXPECT_EQ(number("1e-400", 0, 1), 0);  // less than any double
  EXPECT_EQ(number("-0.0", 0, 1), 0);
  EXPECT_EQ(number("1", 1, 1), 1);
  const auto read = [](const ConfigReader& reader) { reader.number("k", 0, 0.5); };
  EXPECT_GOLDEN(refused_by(file_with(text), read));
  // No double at all: the file is refused, with its place.
  for (const char* value : {"1e400", "-1e400"})
    EXPECT_EQ(error_of([&] { file_with(value); }), "f.json:1:7: number '" + std::string(value) + "' is out of range");
}

TEST(ConfigReaderEdges, NullIsAsGoodAsNothing) {
  const io::Json json = {{"k", nullptr}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.find("k"), nullptr);
  EXPECT_TRUE(reader.is_null("k"));
  EXPECT_FALSE(reader.is_null("absent"));
  EXPECT_EQ(reader.integer("k", 0, 9, 4), 4);
  EXPECT_EQ(reader.integer("k", 0, 9, 40), 40);  // a fallback is no mistake of the file
  EXPECT_EQ(reader.number("k", 0, 1, 0.5), 0.5);
  EXPECT_TRUE(reader.boolean("k", true));
  EXPECT_EQ(reader.word("k", {"a"}, "b"), "b");
  EXPECT_THAT(reader.token_ids("k"), IsEmpty());
  EXPECT_EQ(refused_by(json, [](const auto& r) { r.word("k", {"a", "b"}); }), "missing, allowed: a, b");
  EXPECT_EQ(refused_by(json, [](const auto& r) { r.object("k"); }), "missing, allowed: an object");
}

TEST(ConfigReaderEdges, WordsAreTakenAsTheyStand) {
  const auto read = [](const ConfigReader& reader) { reader.word("k", {"silu", "gelu"}, "silu"); };
  EXPECT_GOLDEN(refused_by(file_with(text), read));
  const auto flag = [](const ConfigReader& reader) { reader.boolean("k", false); };
  for (const char* value : {"0", "1", "\"true\"", "[]", "{}"})
    EXPECT_EQ(refused_by(file_with(value), flag), std::string("found ") + value + ", allowed: true or false");
}

TEST(ConfigReaderEdges, LongValuesAreCut) {
  const auto read = [](const ConfigReader& reader) { reader.boolean("k", false); };
  const std::string exact(58, 'a'), longer(59, 'a');  // 60 with their quotes, and one more
  EXPECT_EQ(refused_by({{"k", exact}}, read), "found \"" + exact + "\", allowed: true or false");
  EXPECT_EQ(refused_by({{"k", longer}}, read), "found \"" + longer + "..., allowed: true or false");
  EXPECT_EQ(refused_by({{"k", "\xff\xfe"}}, read), "found \"\\ufffd\\ufffd\", allowed: true or false");
}

TEST(ConfigReaderEdges, TokenIdsEndWhereInt32Does) {
  const auto ids = [](const std::string& value) {
    const io::Json json = file_with(value);
    return ConfigReader(json, "f.json").token_ids("k");
  };
  EXPECT_THAT(ids("2147483647"), ElementsAre(2147483647));
  EXPECT_THAT(ids("0"), ElementsAre(0));
  EXPECT_THAT(ids("[]"), IsEmpty());
  std::string list = "[0";
  for (int i = 1; i < 256; ++i) list += ", " + std::to_string(i);
  EXPECT_THAT(ids(list + "]"), SizeIs(256));
  const auto read = [](const ConfigReader& reader) { reader.token_ids("k"); };
  EXPECT_EQ(refused_by(file_with(list + ", 256]"), read),
            "found [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,..., allowed: a token id or a list of "
            "token ids");
  for (const char* value : {"2147483648", "18446744073709551615", "-1", "1.0", "\"1\"", "true", "{}", "[1,-1]",
                            "[null]", "[[1]]", "[1.0]", "[2147483648]"})
    EXPECT_EQ(refused_by(file_with(value), read),
              std::string("found ") + value + ", allowed: a token id or a list of token ids");
}

TEST(ConfigReaderEdges, TheDtypeIsNamedByTheKeyThatHasIt) {
  const io::Json old = {{"dtype", nullptr}, {"torch_dtype", "float32"}}, bad = {{"torch_dtype", "float64"}},
                 number = {{"dtype", 16}, {"torch_dtype", "float32"}}, nulls = {{"torch_dtype", nullptr}};
  EXPECT_EQ(ConfigReader(old, "f.json").dtype(), c10::kFloat);
  EXPECT_EQ(ConfigReader(nulls, "f.json").dtype(), std::nullopt);
  EXPECT_EQ(error_of([&] { ConfigReader(bad, "f.json").dtype(); }),
            "[models] f.json: key 'torch_dtype': found \"float64\", allowed: float32, bfloat16, float16");
  EXPECT_EQ(error_of([&] { ConfigReader(number, "f.json").dtype(); }),
            "[models] f.json: key 'dtype': found 16, allowed: float32, bfloat16, float16");
}

TEST(ConfigReaderEdges, PathsGoAllTheWayDown) {
  const io::Json json = {{"a", {{"b", {{"k", 1}}}}}}, other = {{"k", "x"}};
  const ConfigReader reader(json, "d/f.json");
  EXPECT_EQ(reader.name(), "d/f.json");
  EXPECT_EQ(&reader.json(), &json);
  const auto message = [](const ConfigReader& at) { return error_of([&] { at.integer("k", 2, 3); }); };
  EXPECT_EQ(message(reader.object("a").object("b")),
            "[models] d/f.json: key 'a.b.k': found 1, allowed: an integer from 2 to 3");
  EXPECT_EQ(message(reader.object("a").below("c", other)),
            "[models] d/f.json: key 'a.c.k': found \"x\", allowed: an integer from 2 to 3");
  EXPECT_THAT(error_of([&] { reader.object("a").object("b").object("k"); }),
              StartsWith("[models] d/f.json: key 'a.b.k': found 1, allowed: an object"));
  EXPECT_EQ(error_of([&] { reader.object("a").fail_with("what is said"); }), "[models] d/f.json: what is said");
}

}  // namespace
}  // namespace fp8::models
