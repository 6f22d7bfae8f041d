// SPDX-License-Identifier: Apache-2.0
// Language models with attention, softmax and the key/value cache in fp8 as well as the projections, by QUANT_CONFIG as
// a user of Intel Neural Compressor sets it: one run measures, the next quantizes on load. Gated on the KL divergence
// to the high precision model, which bounds simulated on these models and texts give with room for the rounding grid's
// luck (1.25 times the worst measured).
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

struct Language {
  std::string model, calibration, text, skip, samples;
  double kl, kl_of_projections;  ///< bound with everything in fp8; below it, what projections alone give
};

Language kjv() { return {demo_model(), calibration_text(), heldout_text(), "0", "32", 4.8e-3, 2.6e-3}; }

Language stories(const std::filesystem::path& data) {
  const std::string text = (data / "text" / "ts_calib.txt").string();
  return {(data / "models" / "stories260K").string(), text, text, "40", "24", 5.5e-2, 1.9e-2};
}

std::string config(const test::TempDir& folder, const std::string& mode, const std::string& method) {
  const auto keys = R"("observer": "maxabs", "hp_dtype": "fp32", "mode": ")" + mode + R"(", "scale_method": ")" +
                    method + R"(", "blocklist": {"names": ["lm_head"], "types": ["Embedding"]})";
  return write_config(folder / (mode + ".json"), keys, folder / "stats/s");
}

/// Measured nodes whose name ends in `suffix`.
std::size_t measured(const std::filesystem::path& file, const std::string& suffix) {
  std::size_t count = 0;
  const auto json = io::read_json(file);
  for (const auto& item : json.at("Nodes").items()) {
    const std::string& name = item.key();
    count +=
        name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0 ? 1 : 0;
  }
  return count;
}

/// KL of the model quantized with everything in fp8 after a calibration on the first 32 chunks.
io::Json measure_and_quantize(const Language& l, const std::string& attention, const std::string& method,
                              const std::string& device, std::size_t layers) {
  const test::TempDir folder;
  const Arguments common = args("--model {} --seq-len 256 --attention {} --dtype f32", l.model, attention);
  Arguments measure = args("evaluate --data {} --samples 32 {}", l.calibration, common),
            quantize = args("evaluate --json --data {} --skip {} --samples {} --reference {} {}", l.text, l.skip,
                            l.samples, l.model, common);
  expect_success(fp8(measure, {{"QUANT_CONFIG", config(folder, "MEASURE", method)}, {"FP8_HPU_DEVICE", device}}));
  const auto stats = folder / "stats" / "s_hooks_maxabs.json";
  const std::vector<std::string> nodes =
      attention == "fused" ? std::vector<std::string>{"self_attn.fused_scaled_dot_product_attention",
                                                      "self_attn.k_cache", "self_attn.v_cache"}
                           : std::vector<std::string>{"self_attn.matmul_qk", "self_attn.softmax", "self_attn.matmul_av",
                                                      "self_attn.k_cache", "self_attn.v_cache"};
  for (const auto& node : nodes) EXPECT_EQ(measured(stats, node), layers) << node;
  return json_of(fp8(quantize, {{"QUANT_CONFIG", config(folder, "QUANTIZE", method)}, {"FP8_HPU_DEVICE", device}}));
}

using Parameters = std::tuple<const char*, const char*, const char*>;  // attention, scale method, device

class Attention : public ::testing::TestWithParam<Parameters> {};

TEST_P(Attention, KjvByteWithEverythingInFp8) {
  const auto [attention, method, device] = GetParam();
  const auto l = kjv();
  const auto json = measure_and_quantize(l, attention, method, device, 4);
  EXPECT_LE(json.at("kl").get<double>(), l.kl);
  EXPECT_GT(json.at("kl").get<double>(), l.kl_of_projections);  // attention is in fp8 too
}

TEST_P(Attention, Stories260KWithEverythingInFp8) {
  FP8_NEED_TEST_DATA(data);
  const auto [attention, method, device] = GetParam();
  const auto l = stories(data);
  const auto json = measure_and_quantize(l, attention, method, device, 5);
  EXPECT_LE(json.at("kl").get<double>(), l.kl);
  EXPECT_GT(json.at("kl").get<double>(), l.kl_of_projections);
}

INSTANTIATE_TEST_SUITE_P(All, Attention,
                         ::testing::Combine(::testing::Values("fused", "eager"),
                                            ::testing::Values("maxabs_hw", "maxabs_arbitrary"),
                                            ::testing::Values("gaudi2", "gaudi3")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) + "_" +
                                  std::get<2>(info.param);
                         });

TEST(AttentionKinds, InHighPrecisionBothGiveTheSameDistribution) {
  const auto evaluate = [](const std::string& attention) {
    const test::TempDir folder;
    expect_success(fp8("evaluate --model $DEMO --data $HELDOUT --samples 2 --dtype f32 --attention {} --dump-logits {}",
                       attention, folder / "logits"));
    const std::string bytes = Tensors::read(folder / "logits").bytes_of("logits");
    std::vector<float> logits(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), bytes.size());
    return logits;
  };
  const auto fused = evaluate("fused"), eager = evaluate("eager");
  ASSERT_EQ(fused.size(), eager.size());
  ASSERT_EQ(fused.size(), 2u * 256 * 256);
  for (std::size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], eager[i], 2e-3f) << i;
}

TEST(AttentionKinds, GenerateKeepsItsCacheInFp8) {
  const test::TempDir folder;
  const Arguments generate =
      args("generate --json --model $DEMO --prompt 'And the LORD said unto Moses, ' --tokens 60");
  expect_success(fp8(args("evaluate --model $DEMO --data $CALIB --samples 8"),
                     {{"QUANT_CONFIG", config(folder, "MEASURE", "maxabs_hw")}}));
  const auto text =
      json_of(fp8(generate, {{"QUANT_CONFIG", config(folder, "QUANTIZE", "maxabs_hw")}})).at("text").get<std::string>();
  const auto plain = json_of(fp8(generate)).at("text").get<std::string>();
  EXPECT_EQ(text.size(), plain.size());
  std::size_t same = 0;  // greedy text from fp8 follows the high precision one at first
  while (same < text.size() && text[same] == plain[same]) ++same;
  EXPECT_GE(same, 4u) << text << "\n" << plain;
}

}  // namespace
}  // namespace fp8::e2e
