// SPDX-License-Identifier: Apache-2.0
// The walk of a table of keys: each type of value, unknown keys, bounds.
#include "fp8/configs/training/key_rows.h"

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/configs/training/gaudi_config.h"
#include "support/command.h"
#include "support/golden.h"

namespace fp8::configs {
namespace {

constexpr KeyRow kRows[] = {
    {"flag", allow::boolean(), KeyUse::read, ""},
    {"count", allow::integer(1, 5), KeyUse::read, ""},
    {"least", allow::integer(0).or_auto(), KeyUse::read, ""},
    {"share", allow::number(0, 1).or_null(), KeyUse::read, ""},
    {"name", allow::text(), KeyUse::read, ""},
    {"names", allow::texts(), KeyUse::read, ""},
    {"pair", allow::numbers(), KeyUse::read, ""},
    {"word", allow::words("cpu, nvme, false, 0, null"), KeyUse::read, ""},
    {"mode", allow::words("Warn, Fail").in_any_case(), KeyUse::read, ""},
    {"empty", allow::words("\"\", null").or_nothing(), KeyUse::refused, "nothing is sent"},
    {"never", allow::nothing(), KeyUse::refused, "it is gone"},
    {"section", allow::object().or_boolean(), KeyUse::read, ""},
    {"section.enabled", allow::boolean(), KeyUse::read, ""},
    {"section.inner", allow::object(), KeyUse::read, ""},
    {"section.inner.depth", allow::integer(), KeyUse::read, ""},
    {"free", allow::object(), KeyUse::read, ""},
    {"any", allow::anything(), KeyUse::read, ""},
};

std::vector<std::string> row_problems(const std::string& text) {
  return key_problems(io::parse_json(text, "f.json"), "f.json", kRows);
}

std::string row_problem(const std::string& text) {
  const auto all = row_problems(text);
  return all.empty() ? "none" : all.size() == 1 ? all[0] : "several: " + all[1];
}

TEST(KeyRows, ValuesThatARowAllows) {
  for (const std::string& text :
       args(R"('{"flag": true}' '{"count": 5}' '{"count": 5.0}' '{"least": 5e8}' '{"least": "auto"}' )"
            R"('{"least": 18446744073709551615}' '{"share": 0.5}' '{"share": null}' '{"name": ""}' )"
            R"('{"names": []}' '{"names": ["a"]}' '{"pair": [0.9, 1]}' '{"word": "nvme"}' '{"word": false}' )"
            R"('{"word": 0.0}' '{"word": null}' '{"mode": "WARN"}' '{"empty": ""}' '{"empty": null}' )"
            R"('{"empty": []}' '{"section": true}' '{"section": {"enabled": false, "inner": {"depth": -3}}}' )"
            R"('{"free": {"whatever": [1]}}' '{"any": {"a": 1}}' '{"any": null}' '{}')"))
    EXPECT_THAT(row_problems(text), IsEmpty()) << text;
}

TEST(KeyRows, ValuesThatARowDoesNotAllow) { EXPECT_GOLDEN(row_problem(text)); }

TEST(KeyRows, UnknownKeysNameTheNearest) {
  EXPECT_GOLDEN(row_problem(text));
  // A key that is spelt as a path is none.
  EXPECT_EQ(row_problem("{\"a\\nb\": 1}").find('\n'), std::string::npos);
}

TEST(KeyRows, APartOfAFileIsNamedByItsPath) {
  const auto json = io::parse_json(R"({"count": 9, "x": 1})", "f.json");
  EXPECT_THAT(key_problems(json, "f.json", kRows, "a.b."),
              ElementsAre("f.json: key 'a.b.count': found 9, allowed: an integer from 1 to 5",
                          "f.json: unknown key 'a.b.x', did you mean 'a.b.any'?"));
  EXPECT_THAT(key_problems(io::Json(3), "f.json", kRows, "a.b.")[0],
              StartsWith("f.json: key 'a.b': found 3, allowed: an object with the keys"));
}

TEST(KeyRows, AHundredProblemsAreEnough) {
  io::Json json = io::Json::object();
  for (int i = 0; i < 5000; ++i) json["unknown" + std::to_string(i)] = i;
  const auto all = key_problems(json, "f.json", kRows);
  ASSERT_EQ(all.size(), kMostProblems + 1);
  EXPECT_EQ(all.back(), "f.json: more than 100 problems");
}

TEST(KeyRows, MeaningsFollowTheFile) {
  const auto json =
      io::parse_json(R"({"section": {"inner": {"depth": 2}}, "free": {"x": 1}, "flag": true, "odd": 1})", "f");
  std::vector<std::string> keys;
  for (const auto& meaning : key_meanings(json, kRows)) keys.push_back(meaning.key + "=" + meaning.value);
  EXPECT_THAT(keys, ElementsAre("section.inner.depth=2", "free=an object", "flag=true"));
}

TEST(KeyRows, ValuesByPath) {
  const auto json = io::parse_json(R"({"a": {"b": {"c": true}, "n": null}, "t": "true"})", "f");
  EXPECT_TRUE(is_true(json, "a.b.c"));
  EXPECT_FALSE(is_true(json, "a.b"));
  EXPECT_FALSE(is_true(json, "t"));
  EXPECT_EQ(find_value(json, "a.n"), nullptr);
  EXPECT_EQ(find_value(json, "a.b.c.d"), nullptr);
  EXPECT_EQ(find_value(io::Json(1), "a"), nullptr);
}

TEST(KeyRows, StandardsStandForAbsentKeys) {
  constexpr KeyRow rows[] = {{"a", allow::integer(), KeyUse::read, "", "--a", "3"},
                             {"b", allow::text().or_null(), KeyUse::read, "", "", "\"x\""},
                             {"c", allow::boolean(), KeyUse::read, ""}};
  EXPECT_EQ(with_standards(io::Json::object(), rows).dump(), R"({"a":3,"b":"x"})");
  EXPECT_EQ(with_standards(io::parse_json(R"({"c": true, "b": null})", "f"), rows).dump(),
            R"({"a":3,"b":null,"c":true})");
}

TEST(KeyRows, ShareOfKeysThatATableHas) {
  EXPECT_EQ(share_of_keys(io::parse_json(R"({"flag": 1, "count": 2})", "f"), kRows), 100);
  EXPECT_EQ(share_of_keys(io::parse_json(R"({"flag": 1, "section.enabled": 2})", "f"), kRows), 50);
  EXPECT_EQ(share_of_keys(io::parse_json(R"({"sectoin": 1})", "f"), kRows), 50);
  EXPECT_EQ(share_of_keys(io::Json::object(), kRows), 0);
  EXPECT_EQ(share_of_keys(io::Json(1), kRows), 0);
}

TEST(KeyRows, ATableIsAJsonText) {
  const io::KeyTables tables(R"({"keys": [
    {"name": "a", "kind": "integer", "range": [0, null], "or": ["auto"], "note": "what a does", "flag": "--a"},
    {"use": "ignored", "note": "shared", "rows": [
      {"name": "b", "kind": "words", "range": "x, y", "any_case": true, "standard": "x"}]}]})");
  const KeyRows rows = tables["keys"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(key_problems(io::parse_json(R"({"a": "auto", "b": "Y"})", "f"), "f", rows), std::vector<std::string>());
  EXPECT_THAT(key_problems(io::parse_json(R"({"a": -1, "b": "z"})", "f"), "f", rows),
              ElementsAre("f: key 'a': found -1, allowed: an integer >= 0, \"auto\"",
                          "f: key 'b': found \"z\", allowed: x, y"));
  EXPECT_STREQ(rows[0].flag, "--a");
  EXPECT_EQ(rows[0].use, KeyUse::read);
  EXPECT_EQ(rows[1].use, KeyUse::ignored);
  EXPECT_STREQ(rows[1].note, "shared");
  EXPECT_STREQ(rows[1].standard, "x");
  EXPECT_ANY_THROW(io::KeyTables(R"({"keys": [{"name": "a", "kind": "bool"}]})"));
}

// Each table: no path twice, every parent an object that stands before, notes that read as such.
TEST(KeyRows, TablesAreWellFormed) {
  for (const KeyRows table : {deepspeed_keys(), deepspeed_strategy_keys(), deepspeed_trainer_keys(),
                              gaudi_config_keys(), training_argument_keys()}) {
    std::vector<std::string> seen;
    for (const KeyRow& row : table) {
      const std::string path = row.path, note = row.note;
      EXPECT_EQ(std::count(seen.begin(), seen.end(), path), 0) << path;
      const auto dot = path.rfind('.');
      if (dot != std::string::npos) {
        ASSERT_EQ(std::count(seen.begin(), seen.end(), path.substr(0, dot)), 1) << path;
        EXPECT_EQ(find_row(table, path.substr(0, dot))->allowed.type, Allowed::Type::object) << path;
      }
      seen.push_back(path);
      EXPECT_FALSE(note.empty()) << path;
      EXPECT_FALSE(note.ends_with('.')) << path;
      EXPECT_EQ(note.find('\n'), std::string::npos) << path;
      if (*row.standard != '\0') {
        const io::Json standard{{path, io::parse_json(row.standard, path)}};
        EXPECT_EQ(key_problems(standard, path, table), std::vector<std::string>()) << path;
      }
    }
  }
}

// The gaudi_config.json files and the training arguments that Optimum Habana publishes, as facts: each is taken, or
// refused with the sentence of one of its keys.

io::Json published() {
  return io::read_json(std::filesystem::path(FP8_SOURCE_DIR) / "tests/configs/training/published_training.json");
}

/// The beginning of a message, and how many of the files have it.
using Refusals = std::map<std::string, int>;

void expect_refusals(const io::Json& rows, Findings (*check)(const io::Json&, const std::string&),
                     const Refusals& expected) {
  Refusals met;
  for (const auto& row : rows) {
    for (const auto& problem : check(row[1], "f.json").problems) {
      const auto known = std::ranges::find_if(expected, [&](const auto& r) { return problem.starts_with(r.first); });
      EXPECT_NE(known, expected.end()) << row[0] << ": " << problem;
      if (known != expected.end()) ++met[known->first];
    }
  }
  EXPECT_EQ(met, expected);
}

TEST(PublishedTraining, GaudiConfigsAreTakenButThoseOfHabanaMixedPrecision) {
  const auto rows = published()["gaudi_configs"];
  EXPECT_EQ(rows.size(), 5u);
  expect_refusals(rows, check_gaudi_config, {{"f.json: key 'use_habana_mixed_precision': found true", 1}});
}

TEST(PublishedTraining, ArgumentsAreTakenOrRefusedByName) {
  const auto rows = published()["training_args"];
  EXPECT_EQ(rows.size(), 37u);
  expect_refusals(rows, check_training_arguments,
                  {{"f.json: key 'deepspeed': found", 6},
                   {"f.json: key 'metric_for_best_model': found 'accuracy'", 1},
                   {"f.json: key 'optim': found \"paged_adamw_32bit\"", 3},
                   {"f.json: key 'predict_with_generate': found true", 5}});
}

TEST(PublishedTraining, WhatIsTakenComesToACommand) {
  const auto all = published();
  for (const auto& row : all["training_args"]) {
    if (!check_training_arguments(row[1], "f.json").problems.empty()) continue;
    const auto words = training_arguments_command(row[1]).arguments();
    EXPECT_EQ(std::ranges::count(words, "--precision"), 1) << row[0];
    EXPECT_EQ(std::ranges::count(words, "--steps") + std::ranges::count(words, "--epochs"), 1) << row[0];
  }
}

}  // namespace
}  // namespace fp8::configs
