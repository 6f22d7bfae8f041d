// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json and training arguments: what each key comes to, and every refusal with its text.
#include "fp8/configs/training/gaudi_config.h"

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/runtime/io/base/environment.h"
#include "support/command.h"
#include "support/golden.h"

namespace fp8::configs {
namespace {

io::Json parse(const std::string& text) { return io::parse_json(text, "g.json"); }

std::string gaudi_problem(const std::string& text) {
  const auto found = check_gaudi_config(parse(text), "g.json").problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : "several";
}

std::string argument_problem(const std::string& text) {
  const auto found = check_training_arguments(parse(text), "a.json").problems;
  return found.empty() ? "none" : found.size() == 1 ? found[0] : found[0] + "; and: " + found[1];
}

std::vector<std::string> command(const std::string& text) {
  EXPECT_EQ(argument_problem(text), "none") << text;
  return training_arguments_command(parse(text)).arguments();
}

std::string line(const std::string& text) {
  std::string joined;
  for (const auto& word : command(text)) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

TEST(GaudiConfig, EveryKeyOfThePublishedFiles) { EXPECT_GOLDEN(gaudi_problem(text)); }

TEST(GaudiConfig, Problems) { EXPECT_GOLDEN(gaudi_problem(text)); }

TEST(GaudiConfig, WhatItComesTo) {
  const auto json = parse(R"({"use_torch_autocast": true, "autocast_bf16_ops": ["add", "mm"],
                              "autocast_fp32_ops": ["pow"], "use_fused_adam": true, "use_fused_clip_norm": true})");
  const auto command = gaudi_config_command(json);
  EXPECT_THAT(command.arguments(), ElementsAre("--precision", "bf16-mixed", "--eps-mode", "habana", "--eps", "1e-06"));
  EXPECT_EQ(command.settings[1].key, "use_fused_adam");
  EXPECT_THAT(command.variables,
              ElementsAre(testing::Pair("LOWER_LIST", "lower_list.txt"), testing::Pair("FP32_LIST", "fp32_list.txt")));
  const auto ops = autocast_ops(json);
  ASSERT_TRUE(ops);
  EXPECT_THAT(ops->bf16, ElementsAre("add", "mm"));
  EXPECT_THAT(ops->fp32, ElementsAre("pow"));
  EXPECT_EQ(op_list_text(ops->bf16), "add\nmm\n");
  EXPECT_THAT(gaudi_config_command(parse("{}")).arguments(), IsEmpty());
  EXPECT_THAT(gaudi_config_command(parse(R"({"use_fused_adam": false})")).arguments(),
              ElementsAre("--eps-mode", "torch"));
  EXPECT_THAT(gaudi_config_command(parse(R"({"autocast_bf16_ops": null})")).variables, IsEmpty());
  EXPECT_FALSE(autocast_ops(parse(R"({"autocast_bf16_ops": null, "autocast_fp32_ops": []})")));
}

TEST(TrainingArguments, PipeliningIsOfLazyMode) {
  EXPECT_THAT(argument_problem(R"({"use_habana": true, "pipelining_fwd_bwd": true})"),
              ::testing::HasSubstr("found true without use_lazy_mode, allowed: use_lazy_mode true"));
}

// The documents' examples on accelerating training, as a JSON.
TEST(TrainingArguments, EveryKeyOfTheDocuments) {
  EXPECT_EQ(argument_problem(R"({"use_habana": true, "use_lazy_mode": true, "gaudi_config_name": "gaudi_config.json",
      "dataloader_num_workers": 1, "throughput_warmup_steps": 3, "bf16": true, "half_precision_backend": "hpu_amp",
      "use_hpu_graphs_for_training": true, "distribution_strategy": "fast_ddp", "pipelining_fwd_bwd": true,
      "non_blocking_data_copy": true, "logging_steps": 500, "max_steps": 10})"),
            "none");
}

/// The options of GaudiTrainingArguments without arguments.
const std::string kDefaults =
    "--precision 32-true --batch 8 --grad-accum 1 --lr 5e-05 --weight-decay 0 --clip 1 --beta1 0.9 --beta2 0.999 --eps "
    "1e-06 --seed 42 --throughput-warmup 0 --logging-steps 500 --epochs 3 --schedule linear --warmup-from 0 "
    "--save-every 500 --keep-checkpoints 1000000000000 --whole-time";

/// The words that a file adds to those of the defaults, and those that it takes away as "-word".
std::string beside_defaults(const std::string& text) {
  std::multiset<std::string> words;
  const auto pairs = [&](const std::vector<std::string>& list, bool add) {
    std::string word;
    const auto end = [&] {
      if (const auto found = words.find(word); !add && found != words.end())
        words.erase(found);
      else if (!word.empty())
        words.insert(add ? word : "-" + word);
    };
    for (const auto& part : list) {
      if (part.starts_with("--")) {
        end();
        word = part.substr(2);
      } else {
        word += " " + part;
      }
    }
    end();
  };
  pairs(command(text), true);
  pairs(command("{}"), false);
  std::string joined;
  for (const auto& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return joined;
}

TEST(TrainingArguments, TheCommandThatTheyComeTo) {
  EXPECT_EQ(line("{}"), kDefaults);
  EXPECT_GOLDEN(beside_defaults(text));
}

TEST(TrainingArguments, EverySettingHasItsKey) {
  const auto settings = training_arguments_command(
                            parse(R"({"warmup_ratio": 0.1, "fp8": true, "lr_scheduler_type": "constant_with_warmup"})"))
                            .settings;
  const auto key_of = [&](const char* option) {
    for (const auto& setting : settings)
      if (setting.option == option) return setting.key;
    return std::string("none");
  };
  EXPECT_EQ(key_of("recipe"), "fp8");
  EXPECT_EQ(key_of("warmup_ratio"), "warmup_ratio");
  EXPECT_EQ(key_of("schedule"), "lr_scheduler_type");
  EXPECT_EQ(key_of("epochs"), "num_train_epochs");
  for (const auto& setting : settings) EXPECT_NE(find_row(training_argument_keys(), setting.key), nullptr);
}

TEST(TrainingArguments, WhatTheVendorRefuses) { EXPECT_GOLDEN(argument_problem(text)); }

TEST(TrainingArguments, WhatTrainCannotDo) { EXPECT_GOLDEN(argument_problem(text)); }

// Values that are harmless are no problem: files that a program writes hold every key.
TEST(TrainingArguments, DefaultsOfRefusedKeysAreTaken) {
  EXPECT_EQ(argument_problem(R"({"fp16": false, "fp16_backend": "auto", "fp16_opt_level": "O1", "fp16_full_eval": false,
      "tf32": null, "tpu_num_cores": null, "tpu_metrics_debug": false, "mp_parameters": "", "deepspeed": null,
      "fsdp": [],
      "fsdp_config": {"min_num_params": 0, "xla": false}, "push_to_hub": false, "debug": [], "adafactor": false,
      "load_best_model_at_end": false, "neftune_noise_alpha": null, "label_smoothing_factor": 0.0, "warmup_ratio": 0.0,
      "eval_delay": 0, "adam_epsilon": 1e-08, "save_safetensors": true, "max_steps": 5,
      "num_train_epochs": 3.0})"),
            "none");
}

/// Values that a row may allow.
std::vector<io::Json> candidates(const KeyRow& row) {
  std::vector<io::Json> values = {true, false, 3, 0.25, "x", "tensorboard"};
  for (std::string_view rest = row.allowed.words; !rest.empty();) {
    const auto end = std::min(rest.find(", "), rest.size());
    values.emplace_back(std::string(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return values;
}

// Each key that is read changes the command in some file, but for those that another file or check reads.
TEST(TrainingArguments, EveryKeyThatIsReadHasAnEffect) {
  const std::set<std::string> elsewhere = {"gaudi_config_name", "metric_for_best_model", "greater_is_better",
                                           "lr_scheduler_kwargs", "half_precision_backend"};
  const io::Json files[] = {
      parse("{}"),
      parse(R"({"eval_strategy": "steps"})"),
      parse(R"({"profiling_steps": 2})"),
      parse(R"({"use_habana": true})"),
      parse(R"({"use_habana": true, "use_lazy_mode": true})"),
      parse(R"({"use_habana": true, "use_hpu_graphs_for_training": true})"),
      parse(R"({"use_cpu": true, "bf16": true, "half_precision_backend": "cpu_amp"})"),
      parse(R"({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0}})"),
      parse(R"({"eval_strategy": "epoch", "save_strategy": "epoch"})")};
  for (const KeyRow& row : training_argument_keys()) {
    if (row.use != KeyUse::read || elsewhere.contains(row.path)) continue;
    bool changes = false;
    for (const auto& file : files)
      for (const auto& value : candidates(row)) {
        io::Json changed = file;
        if (const std::string path = row.path; path.starts_with("lr_scheduler_kwargs."))
          changed["lr_scheduler_kwargs"][path.substr(path.find('.') + 1)] = value;
        else
          changed[path] = value;
        if (!check_training_arguments(changed, "a.json").problems.empty() ||
            !check_training_arguments(file, "a.json").problems.empty())
          continue;
        changes =
            changes || training_arguments_command(changed).arguments() != training_arguments_command(file).arguments();
      }
    EXPECT_TRUE(changes) << row.path;
  }
}

TEST(TrainingArguments, WhatIsRefusedNamesFileAndKey) {
  for (const KeyRow& row : training_argument_keys()) {
    if (row.use != KeyUse::refused) continue;
    const auto problems = check_training_arguments({{row.path, "no such value"}}, "a.json").problems;
    ASSERT_FALSE(problems.empty()) << row.path;
    EXPECT_THAT(problems[0], StartsWith(std::string("a.json: key '") + row.path + "': found"));
    EXPECT_THAT(problems[0], HasSubstr(std::string("; ") + row.note));
  }
}

TEST(TrainingArguments, WhatIsSentNowhereIsANote) {
  const auto notes = [](const char* text) { return check_training_arguments(parse(text), "a.json").notes; };
  EXPECT_THAT(
      notes(R"({"report_to": ["wandb", "tensorboard", "none"]})"),
      ElementsAre("a.json: key 'report_to': found 'wandb', where nothing is sent; log.jsonl has a line for each step"));
  EXPECT_THAT(notes(R"({"report_to": "all", "learning_rate": 1e-4})"), IsEmpty());
}

TEST(TrainingArguments, VariablesAreThoseOfTheTable) {
  std::set<std::string> known;
  for (const auto& row : io::variables()) known.insert(row.name);
  for (const char* name : {"LOWER_LIST", "FP32_LIST"}) EXPECT_THAT(known, Contains(name));
}

// The walk of a table of keys: each type of value, unknown keys, bounds.

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
  for (const auto& row : rows)
    for (const auto& problem : check(row[1], "f.json").problems) {
      const auto known = std::ranges::find_if(expected, [&](const auto& r) { return problem.starts_with(r.first); });
      EXPECT_NE(known, expected.end()) << row[0] << ": " << problem;
      if (known != expected.end()) ++met[known->first];
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
