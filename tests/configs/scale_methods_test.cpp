// SPDX-License-Identifier: Apache-2.0
// scale_method as an object: who gets which method, which pairs exist, and the path in every error.
#include "fp8/configs/scale_methods.h"

#include "configs/quant_config_text.h"
#include "support/golden.h"

namespace fp8::configs {
namespace {

using recipes::Rounding;
using test::config_error;
using test::parse;
using testing::Pair;

ScaleMethods parse_methods(const std::string& text) {
  return detail::read_scale_methods(io::parse_json(text, "q"), "q.json", "scale_method", {});
}

std::string method_error(const std::string& text) {
  return error_of<io::Error>([&] { parse_methods(text); });
}

constexpr const char* kObject = R"({
  "default":     {"weight": {"rounding_method": "POW2", "backoff": 0.5},
                  "activation": {"rounding_method": "POW2", "backoff": 0.25}},
  "layer_types": {"Linear": {"weight": {"granularity": "PCS"}}},
  "layers":      {"1": {"weight": {"rounding_method": "HW_ALIGNED"}, "activation": {"rounding_method": "hw_aligned"}}},
  "nodes":       {"model.layers.1.mlp.down_proj": {
                      "weight": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"},
                      "activation": {"scale_value_type": "FIXED_VALUE", "rounding_method": "SCALE_UNIT"}}}})";

TEST(ScaleMethods, NodeBeatsLayerBeatsTypeBeatsDefault) {
  const ScaleMethods methods = parse_methods(kObject);
  const auto name = [&](const char* node, const char* type) { return methods.for_module(node, type).name; };
  EXPECT_EQ(name("model.layers.1.mlp.down_proj", "Linear"), "UNIT_SCALE");
  EXPECT_EQ(name("model.layers.1.mlp.up_proj", "Linear"), "MAXABS_HW");
  EXPECT_EQ(name("model.layers.0.mlp.down_proj", "Linear"), "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2");
  EXPECT_EQ(name("model.layers.0.matmul", "Matmul"), "MAXABS_POW2");
  EXPECT_EQ(name("model.layers.11.matmul", "Matmul"), "MAXABS_POW2");
  EXPECT_EQ(methods.source_of("model.layers.1.mlp.down_proj", "Linear"), "nodes.model.layers.1.mlp.down_proj");
  EXPECT_EQ(methods.source_of("model.layers.1.x", "Linear"), "layers.1");
  EXPECT_EQ(methods.source_of("lm_head", "Linear"), "layer_types.Linear");
  EXPECT_EQ(methods.source_of("softmax", "Softmax"), "default");
  EXPECT_FALSE(methods.uniform());
  EXPECT_EQ(methods.name(), "MAXABS_POW2");  // for file names, as Intel Neural Compressor
  EXPECT_EQ(methods.all().size(), 4u);
}

TEST(ScaleMethods, MissingFieldsAreTheDefaults) {
  const ScaleMethods methods = parse_methods(kObject);
  const auto& typed = methods.for_module("lm_head", "Linear");
  EXPECT_EQ(typed.weight.rounding, Rounding::POW2);
  EXPECT_EQ(typed.weight.backoff, 0.5f);
  EXPECT_EQ(typed.activation.backoff, 0.25f);
  EXPECT_EQ(methods.for_module("model.layers.1.q", "Linear").weight.backoff, 0.5f);
  EXPECT_EQ(parse_methods(R"({"default": {}})").default_method.name, "MAXABS_ARBITRARY");
  EXPECT_EQ(parse_methods(R"({"default": {}})").default_method.weight.backoff, 1.0f);
}

TEST(ScaleMethods, LayersAreFoundBehindTheWordLayersWithDotOrSlash) {
  const ScaleMethods methods = parse_methods(R"({"default": {}, "layers": {"3": {"weight": {"rounding_method": "POW2"},
      "activation": {"rounding_method": "POW2"}}}})");
  const auto is_layer = [&](const char* name) { return methods.source_of(name, "T") == "layers.3"; };
  EXPECT_TRUE(is_layer("model.layers.3.q"));
  EXPECT_TRUE(is_layer("layers.3"));
  EXPECT_TRUE(is_layer("model/layers/3/q"));
  EXPECT_TRUE(is_layer("layers.x.layers.3"));  // the first that has a number behind it
  EXPECT_TRUE(is_layer("sublayers.3.q"));      // a pattern that is searched, not a word
  EXPECT_FALSE(is_layer("model.layers.30.q"));
  EXPECT_FALSE(is_layer("model.layer.3.q"));
  EXPECT_FALSE(is_layer("layers.1.layers.3"));
  EXPECT_FALSE(is_layer("layers"));
}

// Every pair of two granularities, four values and five roundings for weight and activation: 13 are methods.
TEST(ScaleMethods, OfAllPairsExactlyTheThirteenAreAccepted) {
  const std::vector<std::string> granularities{"PTS", "PCS"}, values{"MAXABS", "FIXED_VALUE", "OPT", "DUMMY_SCALES"},
      roundings{"IDENTITY", "POW2", "HW_ALIGNED", "HW_ALIGNED_FIXED", "SCALE_UNIT"};
  std::vector<io::Json> triples;
  for (const auto& g : granularities) {
    for (const auto& v : values)
      for (const auto& r : roundings)
        triples.push_back({{"granularity", g}, {"scale_value_type", v}, {"rounding_method", r}, {"backoff", 0.3}});
  }
  std::multiset<std::string> accepted;
  for (const io::Json& weight : triples)
    for (const io::Json& activation : triples) {
      try {
        const auto methods = detail::read_scale_methods({{"default", {{"weight", weight}, {"activation", activation}}}},
                                                        "q", "scale_method", {});
        accepted.insert(methods.name());
        EXPECT_EQ(methods.default_method.weight.backoff, 0.3f);
      } catch (const io::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("Unsupported config")) << weight << activation;
      }
    }
  EXPECT_EQ(accepted.size(), 13u);
  for (const auto& method : recipes::scale_methods()) EXPECT_EQ(accepted.count(method.name), 1u) << method.name;
}

TEST(ScaleMethods, CandidatesOfASearch) {
  const std::string search =
      R"("weight": {"scale_value_type": "OPT", "rounding_method": "POW2", "params": {"weight_scales": [0.5, 1, 2]}},
      "activation": {"rounding_method": "POW2"})";
  const ScaleMethods methods =
      parse_methods(R"({"default": {)" + search + R"(}, "layers": {"0": {"weight": {"scale_value_type": "MAXABS"}}}})");
  EXPECT_EQ(methods.default_method.weight.candidates, (std::vector<float>{0.5f, 1.0f, 2.0f}));
  EXPECT_TRUE(methods.for_module("layers.0", "T").weight.candidates.empty());
  EXPECT_EQ(method_error(R"({"default": {"weight": {"params": {"weight_scales": [1]}}}})"),
            "q.json: key 'scale_method.default.weight.params.weight_scales': found candidates for scale_value_type "
            "MAXABS, allowed: only with OPT");
  for (const char* bad : {"[]", "[0]", "[-1]", "[\"one\"]", "[1e-60]", "3", "{}"})
    EXPECT_THAT(
        method_error(std::string(R"({"default": {"weight": {"scale_value_type": "OPT", "params": {"weight_scales": )") +
                     bad + "}}}}"),
        AllOf(StartsWith("q.json: key 'scale_method.default.weight.params.weight_scales': found "),
              HasSubstr("allowed: an array of")))
        << bad;
}

TEST(ScaleMethods, ErrorsNameThePath) { EXPECT_GOLDEN(method_error(text)); }

TEST(ScaleMethods, UnsupportedPairsNameTheEntryAndWhatItsWeightGoesWith) {
  EXPECT_EQ(
      method_error(R"({"default": {}, "layer_types": {"Linear": {"weight": {"rounding_method": "HW_ALIGNED"}}}})"),
      "q.json: key 'scale_method.layer_types.Linear': Unsupported config: weight PTS MAXABS HW_ALIGNED with activation "
      "PTS MAXABS IDENTITY, allowed for that weight: PTS MAXABS HW_ALIGNED, PCS MAXABS POW2");
  EXPECT_THAT(method_error(R"({"default": {"weight": {"granularity": "PCS", "scale_value_type": "FIXED_VALUE"}}})"),
              AllOf(StartsWith("q.json: key 'scale_method.default': Unsupported config: weight PCS FIXED_VALUE "
                               "IDENTITY, allowed for a weight: "),
                    HasSubstr("PTS OPT HW_ALIGNED")));
}

TEST(ScaleMethods, ReportHasTheFormOfTheDump) {
  const io::Json report =
      method_report(parse_methods(kObject), {{"model.layers.1.q", "Linear"}, {"lm_head", "Linear"}});
  EXPECT_EQ(report["model.layers.1.q"]["WEIGHT"], (io::Json{{"granularity", "PTS"},
                                                            {"scale_value_type", "MAXABS"},
                                                            {"rounding_method", "HW_ALIGNED"},
                                                            {"backoff", 0.5},
                                                            {"params", io::Json::object()}}));
  EXPECT_EQ(report["lm_head"]["WEIGHT"]["granularity"], "PCS");
  EXPECT_EQ(report["lm_head"]["ACTIVATION"]["backoff"], 0.25);
  EXPECT_EQ(report.size(), 2u);
}

// scale_params and the backoffs at the top level: what they change, and what they leave alone.

TEST(ScaleParams, DocumentedBackoffKeysWork) {
  for (const char* text : {R"({"scale_params": {"input_backoff": 0.125, "weight_backoff": 1}})",
                           R"({"input_backoff": 0.125, "weight_backoff": 1, "scale_method": "maxabs_hw"})",
                           R"({"weight_backoff": 1.0, "scale_params": {"input_backoff": 0.125}})"}) {
    const QuantConfig config = parse(text);
    EXPECT_EQ(config.scale_method.activation.backoff, 0.125f) << text;
    EXPECT_EQ(config.scale_method.weight.backoff, 1.0f) << text;
    EXPECT_EQ(config.scale_methods.for_module("m", "Linear").weight.backoff, 1.0f) << text;
  }
  // 100 / (448 * 0.25) = 0.9 and 100 / (448 * 0.125) = 1.8, rounded up to a power of two: the key changes the scale.
  const auto scale = [](const char* text) {
    return recipes::inc_scale_inv(100.0f, parse(text).scale_method.activation, {}, "x");
  };
  EXPECT_EQ(scale("{}"), 1.0f);
  EXPECT_EQ(scale(R"({"input_backoff": 0.125})"), 2.0f);
}

TEST(ScaleParams, BackoffsLeaveFixedScalesAndWrittenBackoffsAlone) {
  EXPECT_EQ(parse(R"({"scale_method": "unit_scale", "input_backoff": 0.5})").scale_method.activation.backoff, 1.0f);
  const QuantConfig config = parse(R"({"input_backoff": 0.0625, "weight_backoff": 0.0625, "scale_method": {"default":
      {"weight": {"rounding_method": "POW2", "backoff": 0.5}, "activation": {"rounding_method": "POW2"}}}})");
  EXPECT_EQ(config.scale_method.weight.backoff, 0.5f);
  EXPECT_EQ(config.scale_method.activation.backoff, 0.0625f);
}

TEST(ScaleParams, BadBackoffs) { EXPECT_GOLDEN(config_error(text)); }

TEST(ScaleParams, ParametersOfObservers) {
  const QuantConfig config = parse(R"({"observer": "percentile", "scale_params": {"percentile": 99.9, "bins": 2048}})");
  EXPECT_THAT(config.scale_params.observer, UnorderedElementsAre(Pair("percentile", 99.9), Pair("bins", 2048.0)));
  EXPECT_GOLDEN(config_error(text));
  EXPECT_NO_THROW(parse(R"({"scale_params": {"hp_dtype": "torch.bfloat16", "lp_dtype": "torch.float8_e4m3fn"}})"));
  EXPECT_NO_THROW(parse(R"({"observer": "mine", "scale_params": {"anything": 3}})"));
}

}  // namespace
}  // namespace fp8::configs
