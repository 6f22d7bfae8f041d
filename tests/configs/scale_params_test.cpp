// SPDX-License-Identifier: Apache-2.0
// scale_params and the backoffs at the top level: what they change, and what they leave alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/quant_config_text.h"
#include "fp8/configs/quant_config.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::configs {
namespace {

using test::config_error;
using test::parse;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

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

TEST(ScaleParams, BadBackoffs) {
  EXPECT_EQ(config_error(R"({"input_backoff": 0})"),
            "q.json: key 'input_backoff': found 0, allowed: a number from 2^-20 to 1");
  EXPECT_EQ(config_error(R"({"scale_params": {"weight_backoff": 1.5}})"),
            "q.json: key 'scale_params.weight_backoff': found 1.5, allowed: a number from 2^-20 to 1");
  EXPECT_EQ(config_error(R"({"scale_params": {"weight_backoff": "one"}})"),
            "q.json: key 'scale_params.weight_backoff': found \"one\", allowed: a number from 2^-20 to 1");
  EXPECT_EQ(config_error(R"({"scale_params": {"input_backoff": 1}, "input_backoff": 0.5})"),
            "q.json: key 'input_backoff': found here and in scale_params, allowed: one of the two");
}

TEST(ScaleParams, ParametersOfObservers) {
  const QuantConfig config = parse(R"({"observer": "percentile", "scale_params": {"percentile": 99.9, "bins": 2048}})");
  EXPECT_THAT(config.scale_params.observer, UnorderedElementsAre(Pair("percentile", 99.9), Pair("bins", 2048.0)));
  EXPECT_EQ(config_error(R"({"scale_params": {"percentil": 99}, "observer": "percentile"})"),
            "q.json: key 'scale_params': unknown key 'percentil' with observer percentile, did you mean 'percentile'? "
            "allowed: input_backoff, weight_backoff, percentile, bins");
  EXPECT_THAT(config_error(R"({"scale_params": {"input_backof": 1}})"), HasSubstr("did you mean 'input_backoff'?"));
  EXPECT_THAT(config_error(R"({"scale_params": {"percentile": 101}, "observer": "percentile"})"),
              HasSubstr("'scale_params.percentile': found 101, allowed: a number above 0, up to 100"));
  EXPECT_THAT(config_error(R"({"scale_params": {"bins": 20.5}, "observer": "kl"})"),
              HasSubstr("an integer from 16 to 65536"));
  EXPECT_THAT(config_error(R"({"scale_params": {"bins": "15"}, "observer": "kl"})"),
              HasSubstr("'scale_params.bins': found \"15\", allowed: an integer from 16 to 65536"));
  EXPECT_THAT(config_error(R"({"scale_params": {"mib": 0}, "observer": "save"})"),
              HasSubstr("'scale_params.mib': found 0, allowed: a number above 0, up to 1e9"));
  EXPECT_THAT(config_error(R"({"scale_params": {"bins": "many"}, "observer": "kl"})"),
              HasSubstr("found \"many\", allowed: a number"));
  EXPECT_THAT(config_error(R"({"scale_params": []})"), HasSubstr("'scale_params': found [], allowed: an object"));
  EXPECT_NO_THROW(parse(R"({"scale_params": {"hp_dtype": "torch.bfloat16", "lp_dtype": "torch.float8_e4m3fn"}})"));
  EXPECT_NO_THROW(parse(R"({"observer": "mine", "scale_params": {"anything": 3}})"));
}

}  // namespace
}  // namespace fp8::configs
