// SPDX-License-Identifier: Apache-2.0
// Every key of QUANT_CONFIG: defaults as Intel Neural Compressor's, values, case, aliases, and the text of every
// error.
#include "fp8/configs/quant_config.h"

#include "configs/quant_config_text.h"
#include "fp8/configs/module_types.h"
#include "support/command.h"
#include "support/enum_names.h"
#include "support/golden.h"

namespace fp8::configs {
namespace {

using test::config_error;
using test::parse;
using testing::Pair;

TEST(QuantConfig, DefaultsAreIncs) {
  const QuantConfig c = parse("{}");
  EXPECT_EQ(c.mode, QuantMode::QUANTIZE);
  EXPECT_EQ(c.observer, "maxabs");
  EXPECT_EQ(c.scale_method.name, "MAXABS_HW");
  EXPECT_TRUE(c.allowlist.empty());
  EXPECT_TRUE(c.blocklist.empty());
  EXPECT_EQ(c.dump_stats_path, "stats");
  EXPECT_EQ(c.fp8_config, recipes::Format::E4M3);
  EXPECT_EQ(c.hp_dtype, recipes::FloatType::BF16);
  EXPECT_EQ(c.measure_exclude, MeasureExclude::OUTPUT);
  EXPECT_FALSE(c.device_for_scales.has_value());
  EXPECT_FALSE(c.ignore_modules_wo_measures);
  EXPECT_TRUE(c.separate_measure_files);
  EXPECT_EQ(c.source, "q.json");
}

TEST(QuantConfig, NamesOfValues) {
  fp8::test::check_names<QuantMode>();
  fp8::test::check_names<MeasureExclude>();
  fp8::test::check_names<ScaleStorage>();
  fp8::test::check_names<KeyStatus>();
  fp8::test::check_names<ModuleKind>();
}

TEST(QuantConfig, Mode) {
  EXPECT_EQ(parse(R"({"mode": "MEASURE"})").mode, QuantMode::MEASURE);
  EXPECT_EQ(parse(R"({"mode": "measure"})").mode, QuantMode::MEASURE);
  EXPECT_EQ(parse(R"({"mode": "None"})").mode, QuantMode::NONE);
  EXPECT_EQ(parse(R"({"mode": "QUANTIZE"})").mode, QuantMode::QUANTIZE);
  EXPECT_EQ(parse(R"({"mode": "shape"})").mode, QuantMode::SHAPE);
  EXPECT_EQ(parse(R"({"mode": "LOAD"})").mode, QuantMode::LOAD);
  EXPECT_EQ(parse(R"({"mode": "AUTO"})").mode, QuantMode::AUTO);
}

TEST(QuantConfig, ObserverIsOneOfTheCallers) {
  const auto options = test::with_observers();
  for (const auto& observer : options.observers)
    EXPECT_EQ(parse_quant_config({{"observer", observer.name}}, "q.json", options).observer, observer.name);
}

TEST(QuantConfig, ACallerWithoutObserversTakesAnyThatCanStandInAFilesName) {
  EXPECT_EQ(parse_quant_config({{"observer", "mean_2"}, {"scale_params", {{"anything", 3}}}}, "q.json").observer,
            "mean_2");
  for (const io::Json& name : {io::Json(""), io::Json("../x"), io::Json("Maxabs"), io::Json(3)})
    EXPECT_EQ(error_of<io::Error>([&] { parse_quant_config({{"observer", name}}, "q.json"); }),
              "q.json: key 'observer': found " + name.dump() + ", allowed: lower case letters, digits and _");
}

TEST(QuantConfig, ScaleMethod) {
  EXPECT_EQ(parse(R"({"scale_method": "unit_scale"})").scale_method.name, "UNIT_SCALE");
  EXPECT_EQ(parse(R"({"scale_method": "ACT_maxabs_pow2_weights_pcs_maxabs_pow2"})").scale_method.weight.granularity,
            recipes::Granularity::channel);
  for (const recipes::NamedScaleMethod& method : recipes::scale_methods()) {
    const QuantConfig config =
        parse_quant_config({{"scale_method", method.name}, {"dynamic_quantization", method.dynamic_only}}, "q.json");
    EXPECT_EQ(config.scale_method.name, method.name);
    EXPECT_EQ(config.scale_methods.name(), method.name);
    EXPECT_TRUE(config.scale_methods.uniform());
  }
}

TEST(QuantConfig, RegisteredScaleMethodsAreKnown) {
  const recipes::ScaleMethod one = recipes::custom_scale([](float, const recipes::IncTarget&) { return 1.0f; });
  {
    const recipes::ScaleMethodRegistration mine("MINE", {.weight = one, .activation = one});
    EXPECT_EQ(parse(R"({"scale_method": "mine"})").scale_method.weight, one);
  }
  EXPECT_THAT(config_error(R"({"scale_method": "mine"})"), HasSubstr("found \"mine\""));
}

TEST(QuantConfig, ModuleLists) {
  const QuantConfig c =
      parse(R"({"allowlist": {"types": ["Linear"], "names": ["fc1", "fc2"]}, "blocklist": {"names": ["a.b"]}})");
  EXPECT_THAT(c.allowlist.types, ElementsAre("Linear"));
  EXPECT_THAT(c.allowlist.names, ElementsAre("fc1", "fc2"));
  EXPECT_THAT(c.blocklist.names, ElementsAre("a.b"));
  EXPECT_TRUE(c.blocklist.types.empty());
  ModuleFilter filter = module_filter(c);
  EXPECT_TRUE(filter.selects("Other", "x.fc2"));
  EXPECT_FALSE(filter.selects("Linear", "axb"));
}

TEST(QuantConfig, OldNamesOfTheListsMergePerPartInFileOrder) {
  EXPECT_THAT(parse(R"({"whitelist": {"types": ["A"]}})").allowlist.types, ElementsAre("A"));
  EXPECT_THAT(parse(R"({"blacklist": {"names": ["n"]}})").blocklist.names, ElementsAre("n"));
  const QuantConfig c = parse(R"({"allowlist": {"types": ["A"], "names": ["n"]}, "whitelist": {"types": ["B"]}})");
  EXPECT_THAT(c.allowlist.types, ElementsAre("B"));
  EXPECT_THAT(c.allowlist.names, ElementsAre("n"));
  EXPECT_EQ(c.file_keys.count("allowlist"), 1u);
  EXPECT_EQ(c.file_keys.count("whitelist"), 0u);
}

TEST(QuantConfig, BadModuleLists) { EXPECT_GOLDEN(config_error(text)); }

TEST(QuantConfig, DumpStatsPath) {
  EXPECT_EQ(parse(R"({"dump_stats_path": "./out/inc_output"})").dump_stats_path, "./out/inc_output");
  for (const char* text :
       {R"({"dump_stats_path": 1})", R"({"dump_stats_path": null})", R"({"dump_stats_path": "a\u0000b"})"})
    EXPECT_THAT(config_error(text),
                AllOf(StartsWith("q.json: key 'dump_stats_path': found "), HasSubstr("allowed: a path")));
}

TEST(QuantConfig, AnEmptyDumpPathIsAnErrorOnlyWhereAFileIsNeeded) {
  const QuantConfig c =
      parse(R"({"dump_stats_path": "", "scale_method": "maxabs_pcs_pow2", "dynamic_quantization": "True"})");
  EXPECT_TRUE(c.dump_stats_path.empty());
  EXPECT_FALSE(c.needs_measurements());
  EXPECT_THAT(error_of<io::Error>([&] { require_stats_path(c, "mode MEASURE writes there"); }),
              AllOf(StartsWith("q.json: key 'dump_stats_path': found \"\", but mode MEASURE writes there; allowed: "
                               "folder and beginning"),
                    HasSubstr("./out/inc_output")));
  EXPECT_NO_THROW(require_stats_path(parse("{}"), "x"));
}

TEST(QuantConfig, NumbersMayStandInQuotesAsPythonsToolsTakeThem) {
  EXPECT_EQ(parse(R"({"calibration_sample_interval": "50"})").calibration_sample_interval, 50);
  EXPECT_EQ(parse(R"({"input_backoff": "0.5"})").scale_params.input_backoff, 0.5f);
  EXPECT_THAT(
      parse(
          R"({"scale_params": {"weight_backoff": "1", "percentile": "99.5", "bins": "64"}, "observer": "percentile"})")
          .scale_params.observer,
      Contains(Pair("percentile", 99.5)));
  EXPECT_NO_THROW(parse(R"({"local_rank": "0", "global_rank": "1", "world_size": "8"})"));
  const QuantConfig c =
      parse(R"({"scale_method": {"default": {"weight": {"rounding_method": "POW2", "backoff": "0.25"}, )"
            R"("activation": {"rounding_method": "POW2"}}}})");
  EXPECT_EQ(c.scale_method.weight.backoff, 0.25f);
}

TEST(QuantConfig, TheDefaultDumpPathIsUsable) {
  EXPECT_EQ(parse("{}").dump_stats_path, "stats");  // "stats_hooks_maxabs.json" in the working directory
}

TEST(QuantConfig, Types) {
  EXPECT_EQ(parse(R"({"fp8_config": "e5m2"})").fp8_config, recipes::Format::E5M2);
  EXPECT_EQ(parse(R"({"fp8_config": "E4M3"})").fp8_config, recipes::Format::E4M3);
  EXPECT_EQ(parse(R"({"hp_dtype": "bf16"})").hp_dtype, recipes::FloatType::BF16);
  EXPECT_EQ(parse(R"({"hp_dtype": "FP16"})").hp_dtype, recipes::FloatType::F16);
  EXPECT_EQ(parse(R"({"hp_dtype": "fp32"})").hp_dtype, recipes::FloatType::F32);
}

TEST(QuantConfig, MeasureExclude) {
  EXPECT_EQ(parse(R"({"measure_exclude": "none"})").measure_exclude, MeasureExclude::NONE);
  EXPECT_EQ(parse(R"({"measure_exclude": "INPUT"})").measure_exclude, MeasureExclude::INPUT);
  EXPECT_EQ(parse(R"({"measure_exclude": "OUTPUT"})").measure_exclude, MeasureExclude::OUTPUT);
  EXPECT_EQ(parse(R"({"measure_exclude": "params"})").measure_exclude, MeasureExclude::PARAMS);
  EXPECT_EQ(parse(R"({"measure_exclude": "ALL"})").measure_exclude, MeasureExclude::ALL);
}

TEST(QuantConfig, DeviceForScalesDecidesTheDialect) {
  EXPECT_EQ(parse(R"({"device_for_scales": "gaudi2"})").device_for_scales, recipes::Dialect::gaudi2);
  EXPECT_EQ(parse(R"({"device_for_scales": "GAUDI3"})").device_for_scales, recipes::Dialect::gaudi3);
  EXPECT_FALSE(parse(R"({"device_for_scales": null})").device_for_scales.has_value());
  const recipes::IncTarget target = inc_target(
      parse(R"({"device_for_scales": "GAUDI2", "hp_dtype": "FP32", "fp8_config": "E5M2"})"), recipes::Dialect::ocp);
  EXPECT_EQ(target.dialect, recipes::Dialect::gaudi2);
  EXPECT_EQ(target.hp, recipes::FloatType::F32);
  EXPECT_EQ(target.format, recipes::Format::E5M2);
  EXPECT_EQ(inc_target(parse("{}"), recipes::Dialect::ocp).dialect, recipes::Dialect::ocp);
}

TEST(QuantConfig, BooleansInEverySpellingOfInc) {
  for (const char* text : {R"({"ignore_modules_wo_measures": true})", R"({"ignore_modules_wo_measures": "True"})",
                           R"({"ignore_modules_wo_measures": "TRUE"})"})
    EXPECT_TRUE(parse(text).ignore_modules_wo_measures) << text;
  EXPECT_FALSE(parse(R"({"ignore_modules_wo_measures": "false"})").ignore_modules_wo_measures);
  EXPECT_FALSE(parse(R"({"seperate_measure_files": false})").separate_measure_files);
  EXPECT_FALSE(parse(R"({"separate_measure_files": false})").separate_measure_files);
  const QuantConfig c = parse(R"({"use_qdq": true, "fake_quant": "true", "recalc_scales": true, "measure_on_hpu": false,
      "row_parallel_linear_allreduce_quantization": "True"})");
  EXPECT_TRUE(c.use_qdq && c.fake_quant && c.recalc_scales && !c.measure_on_hpu && c.row_parallel_allreduce);
}

TEST(QuantConfig, Rounding) {
  EXPECT_TRUE(parse("{}").rounding.nearest());
  EXPECT_TRUE(parse(R"({"rounding": {}})").rounding.nearest());
  const auto rounding =
      parse(R"({"rounding": {"method": "gptq", "dampening_frac": "0.1", "actorder": null}})").rounding;
  EXPECT_EQ(rounding.method, "gptq");
  EXPECT_EQ(rounding.dampening_frac, 0.1);
  EXPECT_FALSE(rounding.by_diagonal);
  EXPECT_TRUE(parse(R"({"rounding": {"method": "gptq", "actorder": "static"}})").rounding.by_diagonal);
  EXPECT_EQ(parse("{}").weight_scale_search, WeightScaleSearch::amax);
  EXPECT_EQ(parse(R"({"weight_scale_search": "mse"})").weight_scale_search, WeightScaleSearch::mse);
}

TEST(QuantConfig, ScaleFormatIsConstWhereNumbersDoNotDo) {
  EXPECT_EQ(parse("{}").scale_format, ScaleStorage::SCALAR);
  EXPECT_EQ(parse(R"({"scale_format": "const"})").scale_format, ScaleStorage::CONST);
  EXPECT_EQ(
      parse(R"({"scale_method": "act_maxabs_hw_weights_pcs_maxabs_pow2", "scale_format": "SCALAR"})").scale_format,
      ScaleStorage::CONST);
  EXPECT_EQ(parse(R"({"fake_quant": true})").scale_format, ScaleStorage::CONST);
  EXPECT_EQ(parse(R"({"dynamic_quantization": true, "scale_method": "maxabs_pow2"})").scale_format,
            ScaleStorage::CONST);
}

TEST(QuantConfig, AnObjectOfMethodsIsComputedAnewUnlessTheFileSaysOtherwise) {
  EXPECT_FALSE(parse("{}").recalc_scales);
  EXPECT_TRUE(parse(R"({"scale_method": {"default": {}}})").recalc_scales);
  EXPECT_FALSE(parse(R"({"recalc_scales": false, "scale_method": {"default": {}}})").recalc_scales);
}

TEST(QuantConfig, SampleInterval) {
  EXPECT_EQ(parse(R"({"calibration_sample_interval": 7})").calibration_sample_interval, 7);
  EXPECT_GOLDEN(config_error(text));
}

TEST(QuantConfig, KeysWithoutEffectAreAcceptedAndChecked) {
  EXPECT_NO_THROW(
      parse(R"({"method": "HOOKS", "quantize_weight": false, "dump_stats_xlsx_path": "a.xlsx", "local_rank": 0,
      "global_rank": null, "world_size": 8, "device_type": "anything", "int_gcfg": {"a": 1}, "mod_dict": {}})"));
  EXPECT_GOLDEN(config_error(text));
  for (const char* text : {R"({"mod_dict": {"Linear": "linear"}})", R"({"mod_dict": []})"})
    EXPECT_THAT(config_error(text), AllOf(StartsWith("q.json: key 'mod_dict': found "), HasSubstr("allowed: {}")))
        << text;
}

TEST(QuantConfig, MeasurementsAreNeededByStaticMethodsOfAmaxOnly) {
  EXPECT_TRUE(parse("{}").needs_measurements());
  EXPECT_TRUE(parse(R"({"mode": "AUTO"})").needs_measurements());
  for (const char* text :
       {R"({"scale_method": "unit_scale"})", R"({"mode": "NONE"})", R"({"mode": "LOAD"})", R"({"mode": "MEASURE"})",
        R"({"scale_method": "maxabs_pow2", "dynamic_quantization": true})"})
    EXPECT_FALSE(parse(text).needs_measurements()) << text;
  EXPECT_TRUE(parse(
                  R"({"scale_method": {
      "default": {"weight": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"},
                  "activation": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"}},
      "layers": {"0": {"weight": {"scale_value_type": "MAXABS", "rounding_method": "POW2"},
                       "activation": {"scale_value_type": "MAXABS", "rounding_method": "POW2"}}}}})")
                  .needs_measurements());
}

TEST(QuantConfig, ValuesThatAreNotAllowed) { EXPECT_GOLDEN(config_error(text)); }

// A QUANT_CONFIG as a whole: all its problems at once, unknown keys, what describe() tells of every key; and the file
// that the environment names.

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
  const auto described = [&](const std::string& key) {
    const KeyReport& report = by_key.at(key);
    return report.value + ", " + report.origin + ", " + name_of(report.status);
  };
  EXPECT_GOLDEN(described(text));
  EXPECT_EQ(by_key.count("whitelist"), 0u);
  for (const KeyReport& report : reports) EXPECT_FALSE(report.note.empty()) << report.key;
  EXPECT_EQ(std::string(name_of(KeyStatus::not_built_yet)), "not built yet");
}

TEST(QuantConfig, DescribeShowsMethodsAndParameters) {
  const auto value = [](const char* text, const std::string& key) {
    for (const KeyReport& report : describe(parse(text)))
      if (report.key == key) return report.value;
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
            "method quantize_weight"))
    EXPECT_EQ(known.count(key), 1u) << key;
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
