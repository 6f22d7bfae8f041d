// SPDX-License-Identifier: Apache-2.0
// Demands of keys on each other, on the device and on the environment.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "fp8/configs/environment.h"
#include "fp8/configs/quant_config.h"
#include "fp8/runtime/io/base/file.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

using recipes::Dialect;

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
  for (const char* mode : {"MEASURE", "SHAPE", "NONE"}) {
    EXPECT_EQ(with({{"mode", mode}}), std::string("q.json: key 'dynamic_quantization': found true with mode ") + mode +
                                          ", allowed: QUANTIZE, LOAD, AUTO");
  }
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
  ASSERT_EQ(other_device.size(), 1u);
  EXPECT_EQ(other_device[0], "q.json: key 'device_for_scales': found GAUDI3 on a gaudi2 device, allowed: GAUDI2, null");
}

TEST(Rules, RuntimeScalePatchingTakesOneScalePerTensor) {
  Environment patching;
  patching.runtime_scale_patching = true;
  for (const auto& method : recipes::scale_methods()) {
    if (method.dynamic_only) continue;
    const bool channels = method.weight.granularity == recipes::Granularity::PCS;
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
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0], HasSubstr("q.json: key 'allowlist.types': found 'torch.nn.Linear', which is no class that can "
                                  "be quantized, did you mean 'Linear'?"));
  EXPECT_THAT(
      found[1],
      HasSubstr(
          "key 'blocklist.types': found 'linear', which is no class that can be quantized, did you mean 'Linear'?"));
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
  EXPECT_THAT(error_of<io::Error>([&] { check_rules(config, Dialect::gaudi2, patching); }),
              HasSubstr("'device_for_scales'"));
  EXPECT_THAT(error_of<io::Error>([&] { check_rules(config, Dialect::gaudi3, patching); }),
              HasSubstr("RUNTIME_SCALE_PATCHING"));
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
