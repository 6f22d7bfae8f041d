// SPDX-License-Identifier: Apache-2.0
// quantization_config as transformers and vLLM need it, and reading what other tools write.
#include "fp8/quant/formats/compressed_tensors.h"

#include "fp8/runtime/io/error.h"
#include "quant/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant::compressed_tensors {
namespace {

using test::throws_with;

Scheme scheme(ActivationScaling activations, WeightGranularity weights) {
  Scheme s;
  s.activations = activations;
  s.weights = weights;
  return s;
}

TEST(CompressedTensors, StaticConfigIsTheMinimalFormReadersTake) {
  const auto config = make_config(scheme(ActivationScaling::static_tensor, WeightGranularity::tensor), {"a", "b"}, {"lm_head"});
  const auto args = io::Json::parse(R"({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false})");
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "float-quantized");
  EXPECT_EQ(config["quantization_status"], "compressed");  // without it: NaN logits in transformers
  EXPECT_EQ(config["ignore"], io::Json::array({"lm_head"}));
  const auto& group = config["config_groups"]["group_0"];
  EXPECT_EQ(group["targets"], io::Json::array({"Linear"}));
  EXPECT_EQ(group["weights"], args);
  EXPECT_EQ(group["input_activations"], args);
}

TEST(CompressedTensors, DynamicAndWeightsOnly) {
  const auto dynamic = make_config(scheme(ActivationScaling::dynamic_token, WeightGranularity::channel), {"a"}, {});
  EXPECT_EQ(dynamic["config_groups"]["group_0"]["weights"]["strategy"], "channel");
  EXPECT_EQ(dynamic["config_groups"]["group_0"]["input_activations"]["strategy"], "token");
  EXPECT_EQ(dynamic["config_groups"]["group_0"]["input_activations"]["dynamic"], true);
  const auto only = make_config(scheme(ActivationScaling::none, WeightGranularity::channel), {"model.lm_head"}, {});
  EXPECT_EQ(only["format"], "naive-quantized");
  EXPECT_TRUE(only["config_groups"]["group_0"]["input_activations"].is_null());
  EXPECT_EQ(only["config_groups"]["group_0"]["targets"], io::Json::array({"Linear", "re:.*lm_head"}));
}

/// A checkpoint [m: 4 x 2] with these scales, read under `config`.
std::vector<StoredModule> read(const test::NamedTensors& scales, const io::Json& config, const io::Json& sidecar = nullptr) {
  const test::TempDir dir;
  test::NamedTensors tensors = {{"m.weight", torch::zeros({4, 2}).to(at::kFloat8_e4m3fn)}, {"norm.weight", torch::ones({2})}};
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  test::write_tensors(dir.path(), tensors);
  return read_modules(io::Checkpoint(dir.path()), config, sidecar);
}

const io::Json kDynamic = make_config(scheme(ActivationScaling::dynamic_token, WeightGranularity::channel), {"m"}, {});
const io::Json kStatic = make_config(scheme(ActivationScaling::static_tensor, WeightGranularity::tensor), {"m"}, {});

TEST(CompressedTensors, ReadsEveryScaleForm) {
  const auto tensor = read({{"m.weight_scale", torch::tensor({0.5f})}, {"m.input_scale", torch::tensor({0.25f})}}, kStatic);
  ASSERT_EQ(tensor.size(), 1u);
  EXPECT_EQ(tensor[0].name, "m");
  EXPECT_EQ(tensor[0].weight_scale_inv, std::vector<float>{0.5f});
  EXPECT_EQ(tensor[0].scheme.weights, WeightGranularity::tensor);
  EXPECT_EQ(tensor[0].scheme.input_scale_inv, 0.25f);
  EXPECT_EQ(tensor[0].scheme.input_scale, 4.0f);
  EXPECT_EQ(tensor[0].scheme.dialect, recipes::Dialect::ocp);
  const auto channel = read({{"m.weight_scale", torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({4, 1}).to(at::kBFloat16)}}, kDynamic);  // bf16, as some tools write
  EXPECT_EQ(channel[0].weight_scale_inv, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(channel[0].scheme.weights, WeightGranularity::channel);
  EXPECT_EQ(channel[0].scheme.activations, ActivationScaling::dynamic_token);
  EXPECT_EQ(read({{"m.weight_scale", torch::tensor(2.0f)}}, kDynamic)[0].weight_scale_inv, std::vector<float>{2.0f});  // 0-dim
}

TEST(CompressedTensors, TheSidecarTellsDialectAndConvention) {
  const auto sidecar = io::Json{{"dialect", "gaudi2"}, {"convention", "inc"}, {"hp_dtype", "bf16"}};
  const auto modules = read({{"m.weight_scale", torch::tensor({0.5f})}, {"m.input_scale", torch::tensor({0.30078125f})}}, kStatic, sidecar);
  EXPECT_EQ(modules[0].scheme.dialect, recipes::Dialect::gaudi2);
  EXPECT_EQ(modules[0].scheme.convention, Convention::inc);
  EXPECT_EQ(modules[0].scheme.input_scale, 3.328125f);  // 1 / 0.30078125 = 3.3247 in bf16
}

TEST(CompressedTensors, WhatDoesNotFitIsNamed) {
  const auto fails = [](const std::vector<std::string>& words, const test::NamedTensors& scales, const io::Json& config) {
    EXPECT_TRUE(throws_with(words, [&] { read(scales, config); })) << config.dump();
  };
  const at::Tensor one = torch::tensor({0.5f});
  fails({"m.weight_scale"}, {}, kDynamic);
  fails({"m.input_scale"}, {{"m.weight_scale", one}}, kStatic);
  fails({"m.input_scale", "expected 1 value, found 2"}, {{"m.weight_scale", one}, {"m.input_scale", torch::ones({2})}}, kStatic);
  fails({"m.weight_scale", "[1] or [N, 1]", "3 values for 4 rows"}, {{"m.weight_scale", torch::ones({3, 1})}}, kDynamic);
  fails({"m.weight_scale", "[1] or [N, 1]"}, {{"m.weight_scale", torch::ones({4})}}, kDynamic);
  fails({"m.weight_scale", "finite scales > 0", "0.0"}, {{"m.weight_scale", torch::zeros({1})}}, kDynamic);
  fails({"m.weight_scale", "finite scales > 0", "nan"}, {{"m.weight_scale", torch::tensor({NAN})}}, kDynamic);
  fails({"m.weight_scale", "F32 or BF16", "F16"}, {{"m.weight_scale", one.to(at::kHalf)}}, kDynamic);
  auto config = kDynamic;
  config["quant_method"] = "fp8";
  fails({"config.json", "'quant_method'", "\"fp8\""}, {{"m.weight_scale", one}}, config);
  config = kDynamic;
  config["config_groups"]["group_1"] = config["config_groups"]["group_0"];
  fails({"'config_groups'", "found 2 groups"}, {{"m.weight_scale", one}}, config);
  config["config_groups"] = io::Json::object();
  fails({"'config_groups'", "at least one"}, {{"m.weight_scale", one}}, config);
  config = kDynamic;
  config["config_groups"]["group_0"]["weights"]["strategy"] = "block";
  fails({"weights.strategy", "\"block\"", "tensor, channel"}, {{"m.weight_scale", one}}, config);
  config = kStatic;
  config["config_groups"]["group_0"]["input_activations"]["strategy"] = "group";
  fails({"input_activations", "\"group\""}, {{"m.weight_scale", one}}, config);
  for (const io::Json& odd : {io::Json(nullptr), io::Json(3), io::Json::array({1}), io::Json("x")}) {
    fails({"config.json"}, {{"m.weight_scale", one}}, odd);
    config = kDynamic;
    config["config_groups"]["group_0"] = odd;
    fails({"config.json"}, {{"m.weight_scale", one}}, config);
  }
}

TEST(CompressedTensors, AFileWithoutCodesIsNamed) {
  const test::TempDir dir;
  test::write_tensors(dir.path(), {{"m.weight", torch::ones({4, 2})}});
  EXPECT_TRUE(throws_with({"expected F8_E4M3 weights", "found none"}, [&] { read_modules(io::Checkpoint(dir.path()), kDynamic, nullptr); }));
}

}  // namespace
}  // namespace fp8::quant::compressed_tensors
