// SPDX-License-Identifier: Apache-2.0
// The configurations in configs/json: all of them parse and say what their names say; and the JSON Schema knows the
// keys and values that the parser knows.

#include "configs/quant_config_text.h"
#include "fp8/configs/configs.h"
#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs {
namespace {

using recipes::Dialect;

const std::filesystem::path kFolder = std::filesystem::path(FP8_SOURCE_DIR) / "configs/json";
constexpr const char* kSchema = "quant_config.schema.json";

QuantConfig read(const std::string& name) { return read_quant_config(kFolder / name); }

TEST(ShippedJson, AllParse) {
  int presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    ASSERT_EQ(entry.path().extension(), ".json");
    const std::string name = entry.path().filename().string();
    if (name == kSchema || name.rfind("recipe_", 0) == 0) continue;  // recipes: recipe_config_test
    EXPECT_NO_THROW(check_rules(read_quant_config(entry.path()), recipes::Dialect::gaudi2, {})) << entry.path();
    ++presets;
  }
  EXPECT_EQ(presets, 12);
}

TEST(ShippedJson, SayWhatTheirNamesSay) {
  for (const char* model : {"maxabs", "llama", "mixtral", "deepseek"}) {
    const std::string name = model;
    const QuantConfig measure = read(name + "_measure.json"), quant = read(name + "_quant.json");
    EXPECT_EQ(measure.mode, QuantMode::MEASURE) << model;
    EXPECT_EQ(quant.mode, QuantMode::QUANTIZE) << model;
    EXPECT_EQ(quant.scale_method.name, "MAXABS_HW") << model;
    EXPECT_EQ(measure.dump_stats_path, quant.dump_stats_path) << model;  // quantizing finds what measuring wrote
    EXPECT_EQ(measure.observer, quant.observer) << model;
    if (name == "maxabs") continue;
    const QuantConfig dynamic = read(name + "_dynamic_quant.json");
    EXPECT_TRUE(dynamic.dynamic_quantization) << model;
    EXPECT_FALSE(dynamic.needs_measurements()) << model;
    EXPECT_EQ(dynamic.blocklist, quant.blocklist) << model;
  }
  EXPECT_EQ(read("unit_scale_quant.json").scale_method.name, "UNIT_SCALE");
}

TEST(ShippedJson, BlocklistsOfTheModels) {
  EXPECT_THAT(read("llama_quant.json").blocklist.names, ElementsAre("lm_head"));
  EXPECT_THAT(read("mixtral_quant.json").blocklist.names, ElementsAre("self_attn", "lm_head"));
  EXPECT_THAT(read("deepseek_quant.json").blocklist.names, ElementsAre("lm_head", "mlp\\.gate\\b"));
  ModuleFilter deepseek = module_filter(read("deepseek_quant.json"));
  EXPECT_FALSE(deepseek.selects("Linear", "model.layers.3.mlp.gate"));
  EXPECT_TRUE(deepseek.selects("Linear", "model.layers.3.mlp.gate_proj"));
}

TEST(Schema, NamesTheKeysOfTheParser) {
  const io::Json schema = io::read_json(kFolder / kSchema);
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  std::set<std::string> of_schema, of_parser;
  for (const auto& [name, property] : schema["properties"].items()) {
    of_schema.insert(name);
    EXPECT_TRUE(property.contains("description")) << name;
  }
  for (const detail::Key& key : detail::keys()) of_parser.insert(key.name);
  for (const detail::Alias& alias : detail::aliases()) of_parser.insert(alias.name);
  EXPECT_EQ(of_schema, of_parser);
}

TEST(Schema, ItsValuesParseAndItsDefaultsAreOurs) {
  const io::Json schema = io::read_json(kFolder / kSchema);
  std::map<std::string, std::string> defaults;
  for (const KeyReport& report : describe(QuantConfig{})) defaults[report.key] = report.value;
  for (const auto& [name, property] : schema["properties"].items()) {
    for (const io::Json& value : property.value("enum", io::Json::array())) {
      io::Json json = {{"scale_method", "maxabs_pow2"}};  // goes with dynamic_quantization too
      json[name] = value;
      EXPECT_NO_THROW(parse_quant_config(json, "q")) << json;
    }
    for (const io::Json& value : property.value("examples", io::Json::array()))
      EXPECT_NO_THROW(parse_quant_config({{name, value}}, "q")) << name << " " << value;
    if (!property.contains("default") || name == "quantize_weight") continue;
    const QuantConfig config = parse_quant_config({{name, property["default"]}}, "q");
    for (const KeyReport& report : describe(config)) EXPECT_EQ(report.value, defaults.at(report.key)) << name;
  }
  for (const io::Json& method : schema["properties"]["scale_method"]["anyOf"][0]["enum"])
    EXPECT_NE(recipes::find_scale_method(method.get<std::string>()), nullptr) << method;
  EXPECT_EQ(schema["properties"]["scale_method"]["anyOf"][0]["enum"].size(), 2 * recipes::scale_methods().size());
}

// Enumerations of a tensor's method, tried one by one: "Unsupported config" is a rule, "allowed: A, B" a value unknown.
TEST(Schema, FieldsOfATensorsMethodAreTheParsers) {
  const io::Json fields = io::read_json(kFolder / kSchema)["$defs"]["tensor"]["properties"];
  for (const auto& [field, property] : fields.items())
    for (const io::Json& value : property.value("enum", io::Json::array())) {
      try {
        detail::read_scale_methods({{"default", {{"weight", {{field, value}}}}}}, "q", "scale_method", {});
      } catch (const io::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("Unsupported config")) << field << value;
      }
    }
}

// Every published configuration is accepted, except those that are right to be refused.
// (tests/e2e/quant_config_test.cpp runs them.)

/// The error of a command that uses the config: reading it, the rules, type names.
std::string config_error(const test::PublishedConfig& published) {
  return error_of<io::Error>([&] {
    check_rules(parse_quant_config(published.keys, "q.json", test::with_observers()), recipes::Dialect::gaudi3, {});
  });
}

TEST(PublishedConfigs, AreAcceptedExceptThoseThatAreRightToBeRefused) {
  std::set<std::string> refused;
  for (const auto& config : test::published_configs()) {
    const auto known = test::refused_configs().find(config.name());
    if (known == test::refused_configs().end()) {
      EXPECT_EQ(config_error(config), "") << config.name();
      continue;
    }
    EXPECT_THAT(config_error(config), HasSubstr(known->second)) << config.name();
    refused.insert(config.name());
  }
  EXPECT_EQ(refused.size(), test::refused_configs().size());
}

TEST(PublishedConfigs, TheTableHasEachOnceAndOfEveryProject) {
  std::map<std::string, std::size_t> count;
  std::set<std::string> names;
  for (const auto& config : test::published_configs()) {
    ++count[config.repository];
    EXPECT_TRUE(names.insert(config.name()).second) << config.name();
  }
  EXPECT_EQ(count,
            (std::map<std::string, std::size_t>{
                {"huggingface/optimum-habana", 27}, {"intel/neural-compressor", 20}, {"vllm-project/vllm-gaudi", 24}}));
}

TEST(PublishedConfigs, WithoutAPathAreThoseThatNeedNone) {
  std::size_t without = 0;
  for (const auto& config : test::published_configs()) {
    if (config.keys.value("dump_stats_path", io::Json("stats")) != io::Json("")) continue;
    EXPECT_FALSE(parse_quant_config(config.keys, "q.json").needs_measurements()) << config.name();
    ++without;
  }
  EXPECT_EQ(without, 8u);
}

// Demands of keys on each other, on the device and on the environment.

std::string parse_error(const io::Json& json) {
  return error_of<io::Error>([&] { parse_quant_config(json, "q.json"); });
}

std::vector<std::string> problems(const io::Json& json, Dialect device, const Environment& environment = {}) {
  return rule_problems(parse_quant_config(json, "q.json"), device, environment);
}

const std::set<std::string> kDynamic{"MAXABS_POW2",
                                     "MAXABS_ARBITRARY",
                                     "MAXABS_POW2_OPT_WEIGHT",
                                     "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2",
                                     "ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2",
                                     "ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW",
                                     "MAXABS_PCS_POW2"};

TEST(Rules, DynamicQuantizationTakesTheMethodsThatFit) {
  for (const auto& method : recipes::scale_methods()) {
    const std::string error = parse_error({{"dynamic_quantization", true}, {"scale_method", method.name}});
    if (kDynamic.count(method.name) != 0) {
      EXPECT_EQ(error, "") << method.name;
    } else {
      EXPECT_THAT(error,
                  AllOf(HasSubstr("q.json: key 'scale_method': found "), HasSubstr(" with dynamic_quantization, "),
                        HasSubstr("allowed: maxabs_pow2, maxabs_arbitrary, "), Not(HasSubstr("unit_scale,"))))
          << method.name;
    }
  }
}

TEST(Rules, PerTokenMethodsAreDynamicOnly) {
  for (const char* name : {"MAXABS_PCS_POW2", "ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW"}) {
    EXPECT_THAT(parse_error({{"scale_method", name}}),
                HasSubstr("without dynamic_quantization, allowed: set dynamic_quantization"))
        << name;
    EXPECT_EQ(parse_error({{"scale_method", name}, {"dynamic_quantization", true}}), "") << name;
  }
}

TEST(Rules, ExceptionsOfAnObjectAreHeldToTheRulesToo) {
  const io::Json pow2 = {{"weight", {{"rounding_method", "POW2"}}}, {"activation", {{"rounding_method", "POW2"}}}};
  const io::Json hw = {{"weight", {{"rounding_method", "HW_ALIGNED"}}},
                       {"activation", {{"rounding_method", "HW_ALIGNED"}}}};
  EXPECT_THAT(
      parse_error({{"dynamic_quantization", true}, {"scale_method", {{"default", pow2}, {"layers", {{"4", hw}}}}}}),
      HasSubstr("q.json: key 'scale_method.layers.4': found maxabs_hw with dynamic_quantization"));
  EXPECT_THAT(parse_error({{"dynamic_quantization", true}, {"scale_method", {{"default", hw}}}}),
              HasSubstr("found maxabs_hw with"));
}

TEST(Rules, DynamicQuantizationExcludesWhatItCanNotDo) {
  const auto with = [](io::Json more) {
    more["dynamic_quantization"] = true;
    more["scale_method"] = "maxabs_pow2";
    return parse_error(more);
  };
  EXPECT_EQ(with(io::Json::object()), "");
  for (const char* mode : {"MEASURE", "SHAPE", "NONE"})
    EXPECT_EQ(with({{"mode", mode}}), std::string("q.json: key 'dynamic_quantization': found true with mode ") + mode +
                                          ", allowed: QUANTIZE, LOAD, AUTO");
  for (const char* mode : {"QUANTIZE", "LOAD", "AUTO"}) EXPECT_EQ(with({{"mode", mode}}), "") << mode;
  for (const char* key : {"use_qdq", "fake_quant", "row_parallel_linear_allreduce_quantization"}) {
    EXPECT_EQ(with({{key, true}}),
              std::string("q.json: key 'dynamic_quantization': found true with ") + key + ", allowed: one of the two");
    EXPECT_EQ(parse_error({{key, true}}), "") << key;
  }
}

TEST(Rules, ScalesOfAnotherDeviceAreGaudi2sOnGaudi3WithMaxabsHw) {
  EXPECT_THAT(problems({{"device_for_scales", "GAUDI2"}}, Dialect::gaudi3), IsEmpty());
  EXPECT_THAT(problems({{"device_for_scales", "GAUDI2"}}, Dialect::ocp), IsEmpty());
  EXPECT_THAT(problems({{"device_for_scales", "GAUDI2"}, {"scale_method", "maxabs_pow2"}}, Dialect::gaudi2), IsEmpty());
  EXPECT_THAT(problems({{"device_for_scales", "GAUDI3"}, {"scale_method", "maxabs_pow2"}}, Dialect::gaudi3), IsEmpty());
  EXPECT_THAT(problems({{"scale_method", "maxabs_pow2"}}, Dialect::gaudi2), IsEmpty());
  const auto other_method =
      problems({{"device_for_scales", "GAUDI2"}, {"scale_method", "maxabs_pow2"}}, Dialect::gaudi3);
  ASSERT_EQ(other_method.size(), 1u);
  EXPECT_EQ(other_method[0],
            "q.json: key 'device_for_scales': found GAUDI2 on a gaudi3 device with maxabs_pow2 (default), allowed: "
            "GAUDI3, null, or scale_method maxabs_hw");
  const auto other_device = problems({{"device_for_scales", "GAUDI3"}}, Dialect::gaudi2);
  EXPECT_THAT(other_device,
              ElementsAre("q.json: key 'device_for_scales': found GAUDI3 on a gaudi2 device, allowed: GAUDI2, null"));
}

TEST(Rules, RuntimeScalePatchingTakesOneScalePerTensor) {
  Environment patching;
  patching.runtime_scale_patching = true;
  for (const auto& method : recipes::scale_methods()) {
    if (method.dynamic_only) continue;
    const bool channels = method.weight.granularity == recipes::Granularity::channel;
    const auto found = problems({{"scale_method", method.name}}, Dialect::gaudi3, patching);
    EXPECT_EQ(found.size(), channels ? 1u : 0u) << method.name;
    for (const std::string& problem : found)
      EXPECT_THAT(problem, HasSubstr("with RUNTIME_SCALE_PATCHING, which takes one scale per tensor"));
    EXPECT_THAT(problems({{"scale_method", method.name}, {"mode", "MEASURE"}}, Dialect::gaudi3, patching), IsEmpty());
  }
  EXPECT_THAT(
      problems({{"scale_method", "maxabs_pcs_pow2"}, {"dynamic_quantization", true}}, Dialect::gaudi3, patching),
      IsEmpty());
}

TEST(Rules, ATypeWithAModulePathIsReportedWithTheNearestType) {
  const io::Json json = {{"allowlist", {{"types", {"torch.nn.Linear", "Linear"}}}},
                         {"blocklist", {{"types", {"linear", "Softmax"}}}}};
  const QuantConfig config = parse_quant_config(json, "q.json");
  const auto found = unknown_type_problems(config);
  EXPECT_THAT(
      found, ElementsAre(HasSubstr("q.json: key 'allowlist.types': found 'torch.nn.Linear', which is no class that can "
                                   "be quantized, did you mean 'Linear'?"),
                         HasSubstr("key 'blocklist.types': found 'linear', which is no class that can be quantized, "
                                   "did you mean 'Linear'?")));
}

TEST(Rules, WhoMeasuresOrQuantizesRefusesATypeWithAModulePath) {
  const auto error = [](const io::Json& json) {
    return error_of<io::Error>([&] { check_rules(parse_quant_config(json, "q.json"), Dialect::gaudi3, {}); });
  };
  EXPECT_THAT(error({{"allowlist", {{"types", {"Linear", "torch.nn.Linear"}}}}}),
              HasSubstr("q.json: key 'allowlist.types': found 'torch.nn.Linear', which is no class that can be "
                        "quantized, did you mean 'Linear'?"));
  EXPECT_THAT(error({{"blocklist", {{"types", {"torch.nn.Softmax"}}}}}),
              HasSubstr("key 'blocklist.types': found 'torch.nn.Softmax'"));
  EXPECT_EQ(error({{"blocklist", {{"types", {"MyOwnLayer"}}}}}), "")
      << "a class of the user's own, which matches nothing";
}

TEST(Rules, CheckThrowsTheFirst) {
  Environment patching;
  patching.runtime_scale_patching = true;
  const QuantConfig config = parse_quant_config(
      {{"device_for_scales", "GAUDI3"}, {"scale_method", "act_maxabs_hw_weights_pcs_maxabs_pow2"}}, "q.json");
  EXPECT_ERROR(io::Error, check_rules(config, Dialect::gaudi2, patching), "'device_for_scales'");
  EXPECT_ERROR(io::Error, check_rules(config, Dialect::gaudi3, patching), "RUNTIME_SCALE_PATCHING");
  EXPECT_EQ(error_of<io::Error>([&] { check_rules(config, Dialect::gaudi3, {}); }), "");
}

TEST(RankSuffix, NamesTheRankAndItsWorld) {
  EXPECT_EQ(rank_suffix(std::nullopt), "");
  EXPECT_EQ(rank_suffix(Rank{0, 1}), "_0_1");
  EXPECT_EQ(rank_suffix(Rank{3, 8}), "_3_8");
}

TEST(RankSuffix, RankMustLieInItsWorld) {
  EXPECT_THROW(rank_suffix(Rank{2, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{-1, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{0, 0}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::configs
