// SPDX-License-Identifier: Apache-2.0
// The configurations in configs/json: all of them parse and say what their names say; and the JSON Schema knows the
// keys and values that the parser knows.

#include <set>

#include "configs/published_configs.h"
#include "configs/quant_config_text.h"
#include "fp8/configs/configs.h"
#include "fp8/configs/quant_config_keys.h"
#include "fp8/configs/scale_methods.h"

namespace fp8::configs {
namespace {

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
    for (const io::Json& value : property.value("examples", io::Json::array())) {
      EXPECT_NO_THROW(parse_quant_config({{name, value}}, "q")) << name << " " << value;
    }
    if (!property.contains("default") || name == "quantize_weight") continue;
    const QuantConfig config = parse_quant_config({{name, property["default"]}}, "q");
    for (const KeyReport& report : describe(config)) EXPECT_EQ(report.value, defaults.at(report.key)) << name;
  }
  for (const io::Json& method : schema["properties"]["scale_method"]["anyOf"][0]["enum"]) {
    EXPECT_NE(recipes::find_scale_method(method.get<std::string>()), nullptr) << method;
  }
  EXPECT_EQ(schema["properties"]["scale_method"]["anyOf"][0]["enum"].size(), 2 * recipes::scale_methods().size());
}

// Enumerations of a tensor's method, tried one by one: "Unsupported config" is a rule, "allowed: A, B" a value unknown.
TEST(Schema, FieldsOfATensorsMethodAreTheParsers) {
  const io::Json fields = io::read_json(kFolder / kSchema)["$defs"]["tensor"]["properties"];
  for (const auto& [field, property] : fields.items()) {
    for (const io::Json& value : property.value("enum", io::Json::array())) {
      try {
        detail::read_scale_methods({{"default", {{"weight", {{field, value}}}}}}, "q", "scale_method", {});
      } catch (const io::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("Unsupported config")) << field << value;
      }
    }
  }
}

// Every published configuration is accepted, except those that are right to be refused.
// (tests/e2e/published_configs_test.cpp runs them.)

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

}  // namespace
}  // namespace fp8::configs
