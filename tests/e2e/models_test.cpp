// SPDX-License-Identifier: Apache-2.0
// A BERT encoder and a residual network, typed modules as users write them, measured and quantized by one QUANT_CONFIG:
// every kind of module that they hold is measured, converted, and the fp8 result stays within the error that rounding
// to E4M3 explains.
//
//   Rounding to 3 mantissa bits: the relative error is uniform in +-2^-4 / m for a mantissa m in [1, 2), log-uniform,
//   so its variance is 2^-6 / 12 * integral over [1, 2] of m^-3 dm / ln 2 = 7.0e-4, e = 0.0265. A product of two
//   rounded operands, signs mixed: e sqrt 2. P products in a row whose errors are independent: e sqrt(2 P). The bound
//   is twice that, for ranges that are not log-uniform and values below the smallest normal number.

#include "fp8/measure/calibration/session.h"
#include "fp8/transformer_engine/te.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/typed_models.h"

namespace fp8::test {
namespace {

using ::testing::UnorderedElementsAreArray;

double bound(int products) { return 2 * 0.0265 * std::sqrt(2.0 * products); }

io::Json config(const std::string& mode, const std::filesystem::path& folder, const std::string& method) {
  return {{"mode", mode},
          {"observer", "maxabs"},
          {"scale_method", method},
          {"hp_dtype", "fp32"},
          {"dump_stats_path", (folder / "s" / "inc").string()}};
}

struct Outcome {
  double error = 0;
  std::vector<std::string> measured, converted;
};

/// Measures on 4 batches, quantizes, and compares another batch with what the model gave before.
template <class Model, class Input>
Outcome measure_and_quantize(Model& model, const Input& batch, const std::string& method) {
  const TempDir folder;
  const torch::NoGradGuard no_grad;
  te::HPUPrecisionPlugin plugin("fp8");
  const at::Tensor expected = model(batch(100)).cpu();
  plugin.convert_modules(*model, {.inference = true, .quant = config("MEASURE", folder.path(), method)});
  EXPECT_TRUE(at::equal(model(batch(100)).cpu(), expected)) << "measuring changes no bit";
  for (int i = 0; i < 4; ++i) model(batch(i));
  measure::finalize_calibration(*model);
  Outcome outcome;
  for (const auto& m : measure::read_measurements((folder / "s" / "inc").string()).modules)
    outcome.measured.push_back(m.module);
  const auto report =
      plugin.convert_modules(*model, {.inference = true, .quant = config("QUANTIZE", folder.path(), method)});
  for (const auto& m : report.converted) outcome.converted.push_back(m.name);
  outcome.error = relative_error(model(batch(100)), expected);
  ::testing::Test::RecordProperty("relative_error", std::to_string(outcome.error));
  return outcome;
}

class BertModel : public ::testing::TestWithParam<std::tuple<bool, const char*>> {};

TEST_P(BertModel, EveryModuleInFp8) {
  const auto [fused, method] = GetParam();
  torch::manual_seed(5);
  Bert model(fused);
  model->to(kHpu);
  model->eval();
  const auto batch = [](int seed) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + seed));
    return torch::randint(0, 97, {3, 32}, at::kLong).to(kHpu);
  };
  const Outcome outcome = measure_and_quantize(model, batch, method);
  std::vector<std::string> expected = {"pooler"};
  for (const std::string layer : {"layer_0.", "layer_1."}) {
    for (const char* name : {"query", "key", "value", "attention_output", "intermediate", "output"})
      expected.push_back(layer + name);
    if (fused) {
      expected.push_back(layer + "sdpa");
    } else {
      for (const char* name : {"matmul_qk", "softmax", "matmul_av"}) expected.push_back(layer + name);
    }
  }
  EXPECT_THAT(outcome.converted, UnorderedElementsAreArray(expected));
  for (const char* name : {"word_embeddings", "position_embeddings"})
    expected.push_back(name);  // measured, and kept unless allowlisted
  EXPECT_THAT(outcome.measured, UnorderedElementsAreArray(expected));
  EXPECT_LE(outcome.error, bound(15));  // 2 layers of q/k/v, q k^T, softmax, p v, o, up, down, and the pooler
  EXPECT_GT(outcome.error, 0.002);
}

INSTANTIATE_TEST_SUITE_P(All, BertModel,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values("maxabs_hw", "maxabs_arbitrary",
                                                              "act_maxabs_pow2_weights_pcs_maxabs_pow2")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "fused_" : "eager_") + std::get<1>(info.param);
                         });

TEST(ResNetModel, EveryModuleInFp8) {
  torch::manual_seed(6);
  ResNet model;
  model->to(kHpu);
  const auto batch = [](int seed) {
    torch::manual_seed(static_cast<std::uint64_t>(2000 + seed));
    return torch::randn({4, 3, 16, 16}).to(kHpu);
  };
  {
    const torch::NoGradGuard no_grad;
    model->train();  // statistics of the batch norms
    for (int i = 0; i < 20; ++i) model(batch(500 + i));
  }
  model->eval();
  const Outcome outcome = measure_and_quantize(model, batch, "maxabs_arbitrary");
  const std::vector<std::string> expected = {
      "conv1", "layer1.conv1", "layer1.conv2", "layer2.conv1", "layer2.conv2", "layer2.downsample", "fc"};
  EXPECT_THAT(outcome.measured, UnorderedElementsAreArray(expected));
  EXPECT_THAT(outcome.converted, UnorderedElementsAreArray(expected));
  EXPECT_LE(outcome.error, bound(6));  // the longest path
  EXPECT_GT(outcome.error, 0.002);
}

}  // namespace
}  // namespace fp8::test
