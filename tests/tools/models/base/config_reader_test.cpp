// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/base/model_config.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
    EXPECT_THAT(test::error_of<io::Error>([&] { reader.integer(key, 1, 8); }),
                HasSubstr(std::string("[models] f.json: key '") + key + "': "));
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.integer("high", 1, 8); }),
              HasSubstr("found 9, allowed: an integer from 1 to 8"));
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.integer("huge", 1, 8); }),
              HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.integer("absent", 1, 8); }), HasSubstr("missing, allowed"));
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
    EXPECT_THAT(test::error_of<io::Error>([&] { reader.number(key, 0, 1); }), HasSubstr("allowed: a number from 0"));
}

TEST(ConfigReader, WordsAndBooleans) {
  const io::Json json = {{"word", "b"}, {"flag", true}, {"one", 1}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.word("word", {"a", "b"}), "b");
  EXPECT_EQ(reader.word("absent", {"a", "b"}, "a"), "a");
  EXPECT_EQ(test::error_of<io::Error>([&] { reader.word("word", {"a", "c"}); }),
            "[models] f.json: key 'word': found \"b\", allowed: a, c");
  EXPECT_TRUE(reader.boolean("flag", false));
  EXPECT_TRUE(reader.boolean("absent", true));
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.boolean("one", true); }),
              HasSubstr("found 1, allowed: true or false"));
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
    EXPECT_THAT(test::error_of<io::Error>([&] { reader.token_ids(key); }), HasSubstr("a token id"));
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
    EXPECT_THAT(test::error_of<io::Error>([&] { reader.indices(key, 5); }),
                HasSubstr("allowed: a list of integers from 0 to 4"));
}

TEST(ConfigReader, Dtypes) {
  const io::Json both = {{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}, old = {{"torch_dtype", "bfloat16"}},
                 none = io::Json::object(), other = {{"dtype", "int8"}};
  EXPECT_EQ(ConfigReader(both, "f").dtype(), c10::kHalf);
  EXPECT_EQ(ConfigReader(old, "f").dtype(), c10::kBFloat16);
  EXPECT_EQ(ConfigReader(none, "f").dtype(), std::nullopt);
  EXPECT_THAT(test::error_of<io::Error>([&] { ConfigReader(other, "f").dtype(); }),
              HasSubstr("key 'dtype': found \"int8\""));
}

TEST(ConfigReader, ObjectsHaveTheirPath) {
  const io::Json json = {{"rope", {{"factor", "x"}, {"deep", {{"n", 7}}}}}, {"list", {1}}};
  const ConfigReader reader(json, "f.json");
  EXPECT_EQ(reader.object("rope").object("deep").integer("n", 0, 9), 7);
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.object("rope").number("factor", 0, 1); }),
              HasSubstr("key 'rope.factor': found \"x\""));
  EXPECT_THAT(test::error_of<io::Error>([&] { reader.object("list"); }),
              HasSubstr("key 'list': found [1], allowed: an object"));
  EXPECT_THAT(test::error_of<io::Error>([&] { ConfigReader(io::Json(3), "f.json"); }),
              HasSubstr("f.json: found 3, expected a JSON object"));
}

}  // namespace
}  // namespace fp8::models
