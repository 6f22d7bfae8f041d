// SPDX-License-Identifier: Apache-2.0
// A QUANT_CONFIG as a whole: all its problems at once, unknown keys, what describe() tells of every key; and the file
// that the environment names.

#include <set>

#include "configs/quant_config_text.h"
#include "support/command.h"
#include "support/golden.h"

namespace fp8::configs {
namespace {

using test::config_error;
using test::parse;

TEST(QuantConfig, AllProblemsAtOnce) {
  const io::Json json = {{"mode", "X"},
                         {"scale_methd", 1},
                         {"scale_method", "maxabs_pcs_pow2"},
                         {"input_backoff", 7},
                         {"blocklist", {{"names", {"("}}}}};
  const auto problems = quant_config_problems(json, "q.json");
  ASSERT_EQ(problems.size(), 5u) << testing::PrintToString(problems);
  EXPECT_THAT(problems[0], HasSubstr("key 'mode': found \"X\""));
  EXPECT_THAT(problems[1], HasSubstr("unknown key 'scale_methd'"));
  EXPECT_THAT(problems[2], HasSubstr("key 'input_backoff': found 7"));
  EXPECT_THAT(problems[3], HasSubstr("key 'blocklist.names[0]': pattern '('"));
  EXPECT_THAT(problems[4], HasSubstr("found maxabs_pcs_pow2 without dynamic_quantization"));
  EXPECT_TRUE(quant_config_problems(io::Json::object(), "q.json").empty());
  EXPECT_EQ(quant_config_problems(io::Json(3), "q.json").size(), 1u);
}

TEST(QuantConfig, UnknownKeysNameTheNearest) { EXPECT_GOLDEN(config_error(text)); }

TEST(QuantConfig, ErrorsStayOnOneShortLine) {
  const std::string name(10000, 'k');
  const std::string message = config_error(("{\"a\\nb" + name + "\": 1}").c_str());
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 400u);
  const std::string value = config_error(("{\"mode\": \"a\\nb" + name + "\"}").c_str());
  EXPECT_EQ(value.find('\n'), std::string::npos);
  EXPECT_LT(value.size(), 400u);
}

TEST(QuantConfig, DuplicateKeysAndOtherThingsThanObjectsAreErrors) { EXPECT_GOLDEN(config_error(text)); }

// The measure configuration that vLLM's calibration for Gaudi writes.
TEST(QuantConfig, ReadsWhatCalibrationScriptsWrite) {
  const QuantConfig c = parse(R"({"method": "HOOKS", "mode": "MEASURE", "observer": "maxabs",
      "allowlist": {"types": [], "names": []}, "blocklist": {"types": [], "names": ["self_attn", "lm_head"]},
      "quantize_weight": false, "dump_stats_path": "/out/model/g3/inc_output", "calibration_sample_interval": 1})");
  EXPECT_EQ(c.mode, QuantMode::MEASURE);
  EXPECT_THAT(c.blocklist.names, ElementsAre("self_attn", "lm_head"));
}

TEST(QuantConfig, DescribeTellsValueAndOriginOfEveryKey) {
  const QuantConfig c = parse(R"({"mode": "measure", "whitelist": {"types": ["Linear"]}, "scale_format": "CONST"})");
  const std::vector<KeyReport> reports = describe(c);
  std::map<std::string, KeyReport> by_key;
  for (const KeyReport& report : reports) EXPECT_TRUE(by_key.emplace(report.key, report).second) << report.key;
  EXPECT_EQ(by_key.at("mode").value, "MEASURE");
  EXPECT_EQ(by_key.at("mode").origin, "q.json");
  EXPECT_EQ(by_key.at("mode").status, KeyStatus::built);
  EXPECT_EQ(by_key.at("allowlist").value, R"({"names":[],"types":["Linear"]})");
  EXPECT_EQ(by_key.at("allowlist").origin, "q.json");
  EXPECT_EQ(by_key.at("blocklist").origin, "default");
  EXPECT_EQ(by_key.at("hp_dtype").value, "BF16");
  EXPECT_EQ(by_key.at("scale_method").value, "MAXABS_HW");
  EXPECT_EQ(by_key.at("measure_exclude").value, "OUTPUT");
  EXPECT_EQ(by_key.at("device_for_scales").value, "null");
  EXPECT_EQ(by_key.at("dump_stats_path").value, "stats");
  EXPECT_EQ(by_key.at("scale_format").value, "CONST");
  EXPECT_EQ(by_key.at("method").status, KeyStatus::ignored);
  EXPECT_EQ(by_key.at("dynamic_quantization").status, KeyStatus::built);
  EXPECT_EQ(by_key.at("dynamic_quantization").value, "false");
  EXPECT_EQ(by_key.at("input_backoff").value, "null");
  EXPECT_EQ(by_key.at("scale_params").value, "{}");
  EXPECT_EQ(by_key.count("whitelist"), 0u);
  for (const KeyReport& report : reports) EXPECT_FALSE(report.note.empty()) << report.key;
  EXPECT_EQ(std::string(name_of(KeyStatus::not_built_yet)), "not built yet");
}

TEST(QuantConfig, DescribeShowsMethodsAndParameters) {
  const auto value = [](const char* text, const std::string& key) {
    for (const KeyReport& report : describe(parse(text))) {
      if (report.key == key) return report.value;
    }
    return std::string("no such key");
  };
  EXPECT_EQ(value(R"({"scale_method": {"default": {}, "layers": {"0": {}, "1": {}}, "nodes": {"lm_head": {}}}})",
                  "scale_method"),
            "MAXABS_ARBITRARY + 1 nodes + 2 layers");
  EXPECT_EQ(value(R"({"observer": "kl", "scale_params": {"bins": 512, "weight_backoff": 0.5}})", "scale_params"),
            R"({"weight_backoff":0.5,"bins":512.0})");
  EXPECT_EQ(value(R"({"input_backoff": 0.25})", "input_backoff"), "0.25");
}

TEST(QuantConfig, EveryKeyOfIncIsKnown) {
  std::set<std::string> known;
  for (const KeyReport& report : describe(QuantConfig{})) known.insert(report.key);
  for (const auto& key :
       args("mode observer dump_stats_path fp8_config hp_dtype scale_method scale_params scale_format allowlist "
            "blocklist measure_exclude ignore_modules_wo_measures recalc_scales fake_quant use_qdq measure_on_hpu "
            "device_for_scales dynamic_quantization row_parallel_linear_allreduce_quantization "
            "calibration_sample_interval seperate_measure_files mod_dict local_rank global_rank world_size device_type "
            "method quantize_weight")) {
    EXPECT_EQ(known.count(key), 1u) << key;
  }
}

TEST(QuantConfigFile, ReadsAndNamesTheFileInErrors) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "quant_config_test_bad.json";
  std::ofstream(path) << R"({"mode": "X"})";
  EXPECT_THAT(error_of<io::Error>([&] { read_quant_config(path); }),
              StartsWith(path.string() + ": key 'mode': found \"X\""));
  std::ofstream(path) << R"({"mode": "MEASURE"})";
  EXPECT_EQ(read_quant_config(path).mode, QuantMode::MEASURE);
  std::filesystem::remove(path);
  EXPECT_THROW(read_quant_config(path), io::Error);
}

TEST(QuantConfigFile, EnvironmentNamesIt) {
  ASSERT_EQ(setenv("QUANT_CONFIG", "a/b.json", 1), 0);
  EXPECT_EQ(quant_config_from_environment(), std::filesystem::path("a/b.json"));
  ASSERT_EQ(setenv("QUANT_CONFIG", "", 1), 0);
  EXPECT_EQ(quant_config_from_environment(), std::nullopt);
  ASSERT_EQ(unsetenv("QUANT_CONFIG"), 0);
  EXPECT_EQ(quant_config_from_environment(), std::nullopt);
}

}  // namespace
}  // namespace fp8::configs
