// SPDX-License-Identifier: Apache-2.0
// gpt_oss as it is published: experts in MXFP4 go through byte for byte, attention becomes fp8, and the config says
// which is which in the words of vLLM's reader (vllm_lookups.py asks the reader itself).
#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/forms/model_source.h"
#include "quant/forms/form_checkpoint.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;
using test::HandTensor;

constexpr char kExperts[] = "model.layers.0.mlp.experts", kAttention[] = "model.layers.0.self_attn.";

HandTensor bytes(const std::string& name, std::vector<std::int64_t> shape, int first) {
  std::int64_t size = 1;
  for (const auto n : shape) size *= n;
  HandTensor t{name, DType::U8, std::move(shape), {}};
  for (std::int64_t i = 0; i < size; ++i) t.bytes.push_back(static_cast<std::uint8_t>(first + i * 7));
  return t;
}

HandTensor values(const std::string& name, std::vector<std::int64_t> shape) {
  std::vector<float> list;
  std::int64_t size = 1;
  for (const auto n : shape) size *= n;
  for (std::int64_t i = 0; i < size; ++i) list.push_back(0.01f * static_cast<float>(i % 91 - 45));
  return test::f32(name, std::move(shape), list);
}

/// Two experts of 64 x 32, one layer.
std::vector<HandTensor> gpt_oss() {
  std::vector<HandTensor> all{values("model.embed_tokens.weight", {40, 64}), values("lm_head.weight", {40, 64}),
                              values("model.layers.0.mlp.router.weight", {2, 64}),
                              values("model.layers.0.mlp.router.bias", {2})};
  for (const std::string name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    all.push_back(values(kAttention + name + ".weight", {64, 64}));
    all.push_back(values(kAttention + name + ".bias", {64}));
  }
  const std::string below = std::string(kExperts) + ".";
  all.push_back(bytes(below + "gate_up_proj_blocks", {2, 64, 2, 16}, 3));
  all.push_back(bytes(below + "gate_up_proj_scales", {2, 64, 2}, 100));
  all.push_back(values(below + "gate_up_proj_bias", {2, 64}));
  all.push_back(bytes(below + "down_proj_blocks", {2, 64, 1, 16}, 9));
  all.push_back(bytes(below + "down_proj_scales", {2, 64, 1}, 110));
  all.push_back(values(below + "down_proj_bias", {2, 64}));
  return all;
}

struct Source {
  std::vector<HandTensor> tensors;
  test::HandCheckpoint folder;
  test::TempDir dir;
  CheckpointOptions options;

  explicit Source(std::vector<HandTensor> list = gpt_oss(), const char* model_type = "gpt_oss")
      : tensors(std::move(list)), folder(Json{{"quant_method", "mxfp4"}}, tensors) {
    Json config = io::read_json(folder.path() / "config.json");
    config["model_type"] = model_type;
    folder.write("config.json", config);
    options.form = "quark";
    options.plan.weights = Granularity::channel;
    options.plan.activations = ActivationScaling::dynamic_token;
  }
  CheckpointReport run() { return quantize_checkpoint(folder.path(), out(), options); }
  std::filesystem::path out() const { return dir / "out"; }
  Json quantization() const { return io::read_json(out() / "config.json")["quantization_config"]; }
};

TEST(QuarkForm, ExpertsGoThroughByteForByteBesideAttentionInFp8) {
  for (const auto weights : {Granularity::channel, Granularity::tensor}) {
    Source source;
    source.options.plan.weights = weights;
    EXPECT_EQ(source.run().quantized.size(), 4u);
    const io::Checkpoint out(source.out());
    for (const auto& t : source.tensors) {
      const auto& info = out.info(t.name);
      const bool attention = t.name.starts_with(kAttention) && t.name.ends_with(".weight");
      EXPECT_EQ(info.dtype, attention ? DType::F8_E4M3 : t.dtype) << t.name;
      EXPECT_EQ(info.shape, t.shape) << t.name;
      if (attention) continue;
      std::vector<std::uint8_t> found(t.bytes.size());
      out.read(t.name, found.data());
      EXPECT_EQ(found, t.bytes) << t.name;
    }
    const auto& scale = out.info(std::string(kAttention) + "q_proj.weight_scale");
    EXPECT_EQ(scale.dtype, DType::F32);
    EXPECT_EQ(scale.shape,
              weights == Granularity::channel ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{});
    const auto stored = read_stored(out);
    ASSERT_EQ(stored.weights.size(), 4u);
    EXPECT_EQ(stored.weights[0].spec.scheme.weights, weights);
    EXPECT_EQ(stored.weights[0].spec.scheme.activations, ActivationScaling::dynamic_token);
    EXPECT_EQ(stored.packed, (std::vector<std::string>{std::string(kExperts) + ".down_proj_blocks",
                                                       std::string(kExperts) + ".gate_up_proj_blocks"}));
    const auto verdicts = check_readers(source.out());
    ASSERT_EQ(verdicts.size(), 1u);
    EXPECT_EQ(verdicts[0].reader, "vLLM");
    EXPECT_TRUE(verdicts[0].problems.empty()) << verdicts[0].problems.front();
  }
}

TEST(QuarkForm, TheConfigTellsThemApart) {
  Source source;
  const auto report = source.run();
  const Json config = source.quantization();
  EXPECT_EQ(config["quant_method"], "quark");
  const Json& linear = config["global_quant_config"];
  expect_values(linear["weight"], {{"dtype", "fp8_e4m3"}, {"qscheme", "per_channel"}, {"is_dynamic", false}});
  expect_values(linear["input_tensors"], {{"qscheme", "per_channel"}, {"is_dynamic", true}});
  const Json& experts = config["layer_quant_config"][std::string(kExperts) + "*"];
  expect_values(experts["weight"], {{"dtype", "fp4"}, {"group_size", 32}, {"scale_format", "e8m0"}});
  EXPECT_TRUE(experts["input_tensors"].is_null());
  const auto exclude = config["exclude"].get<std::vector<std::string>>();
  EXPECT_EQ(std::count(exclude.begin(), exclude.end(), "lm_head"), 1);
  EXPECT_EQ(std::count(exclude.begin(), exclude.end(), "model.layers.0.mlp.router"), 1);
  EXPECT_EQ(std::count(exclude.begin(), exclude.end(), kExperts), 0) << "vLLM would take them for bf16";
  const auto packed = std::find_if(report.skipped.begin(), report.skipped.end(),
                                   [](const auto& s) { return s.name == std::string(kExperts) + ".down_proj_blocks"; });
  ASSERT_NE(packed, report.skipped.end());
  EXPECT_EQ(packed->reason, "in MXFP4 already");
}

TEST(QuarkForm, WhatItIsNotForIsRefused) {
  Source other_form;
  other_form.options.form = "compressed-tensors";
  EXPECT_REFUSED(other_form.run(), "MXFP4 already", "quark");
  Source other_model(gpt_oss(), "llama");
  EXPECT_REFUSED(other_model.run(), "quantized already");
  Source unpacked({values("model.layers.0.self_attn.q_proj.weight", {64, 64})});
  EXPECT_REFUSED(unpacked.run(), "quark is written for", "found none");
  Source blocks;
  blocks.options.plan.weights = Granularity::block;
  blocks.options.plan.activations = ActivationScaling::dynamic_group;
  EXPECT_REFUSED(blocks.run(), "quark holds", "found block");
  auto ragged = gpt_oss();
  for (auto& t : ragged)
    if (t.name.ends_with("down_proj_scales")) t = bytes(t.name, {2, 64}, 1);
  Source unfit(ragged);
  EXPECT_REFUSED(unfit.run(), "down_proj_blocks", "expected MXFP4");
}

TEST(QuarkForm, NothingElseIsMadeOfItsOutput) {
  Source source;
  source.run();
  ConvertOptions to{.form = "compressed-tensors"};
  const std::filesystem::path out = source.dir / "ct";
  EXPECT_REFUSED(convert_checkpoint(source.out(), out, to), "experts in MXFP4");
  to.type = recipes::FloatType::BF16;
  EXPECT_REFUSED(convert_checkpoint(source.out(), out, to), "experts in MXFP4");
  EXPECT_FALSE(std::filesystem::exists(out));
  Json config = io::read_json(source.out() / "config.json");
  config["quantization_config"]["layer_quant_config"] = Json::object();
  io::write_json(source.out() / "config.json", config);
  EXPECT_REFUSED(read_stored(io::Checkpoint(source.out())), "down_proj_blocks", "expected dtype \"fp4\"");
}

/// As Quark's own exports spell it: parts in lists, entries by pattern, static scales.
TEST(QuarkForm, PublishedConfigsAreRead) {
  const auto part = [](const char* qscheme, bool dynamic) {
    return Json{{"dtype", "fp8_e4m3"}, {"qscheme", qscheme}, {"is_dynamic", dynamic}};
  };
  const Json config = {
      {"quant_method", "quark"},
      {"global_quant_config",
       {{"weight", Json::array({part("per_tensor", false)})}, {"input_tensors", part("per_tensor", false)}}},
      {"layer_quant_config",
       {{"*.k", {{"weight", part("per_channel", false)}, {"input_tensors", part("per_tensor", true)}}}}}};
  const test::HandCheckpoint folder(config, {test::codes("m.q", 4, 8), test::f32("m.q.weight_scale", {}, {0.5f}),
                                             test::f32("m.q.input_scale", {1}, {0.25f}), test::codes("m.k", 4, 8),
                                             test::f32("m.k.weight_scale", {4}, {1, 2, 3, 4})});
  const auto stored = folder.read();
  ASSERT_EQ(stored.weights.size(), 2u);
  EXPECT_EQ(stored.weights[1].spec.scheme.activations, ActivationScaling::static_tensor);
  EXPECT_EQ(stored.weights[1].spec.scheme.input_scale_inv, 0.25f);
  EXPECT_EQ(stored.weights[0].spec.scheme.weights, Granularity::channel);
  EXPECT_EQ(stored.weights[0].spec.scheme.activations, ActivationScaling::dynamic_tensor);
  EXPECT_EQ(read_scale_inv(folder.open(), stored.weights[0]), (std::vector<float>{1, 2, 3, 4}));

  Json fp6 = config;
  fp6["global_quant_config"]["weight"] = {{"dtype", "fp6_e2m3"}, {"qscheme", "per_group"}};
  const test::HandCheckpoint other(fp6, {test::codes("m.q", 4, 8), test::f32("m.q.weight_scale", {}, {0.5f})});
  EXPECT_REFUSED(other.read(), "entry of m.q", "key 'weight'", "fp8_e4m3");
}

}  // namespace
}  // namespace fp8::quant
