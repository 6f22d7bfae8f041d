// SPDX-License-Identifier: Apache-2.0
// What fp8 with a scale per block does to real models, converted in memory: the KL divergence of the next-token
// distributions from those of the model in high precision, beside that of per-tensor scales.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "fp8/quant/model/convert.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/text/dataset.h"
#include "support/test_data.h"

namespace fp8::models {
namespace {

at::Tensor logits_of(const std::filesystem::path& folder, const at::Tensor& ids, const quant::PlanOptions* options) {
  const torch::NoGradGuard no_grad;
  auto loaded =
      load_model(folder, {.dtype = at::kFloat, .device = at::Device(at::kHPU), .attention = AttentionKind::fused});
  if (options != nullptr) quant::convert(*loaded.model, *options);
  return at::log_softmax(loaded.model->forward(ids.to(at::kHPU)).cpu().to(at::kDouble), -1);
}

/// KL(high precision || options) in nats a token.
double kl(const std::filesystem::path& folder, const at::Tensor& ids, const at::Tensor& p,
          const quant::PlanOptions& options) {
  return (p.exp() * (p - logits_of(folder, ids, &options))).sum(-1).mean().item<double>();
}

void expect_blocks_close(const std::filesystem::path& folder, const std::filesystem::path& data) {
  const text::Tokenizer tokenizer(folder);
  const auto chunks = text::load_chunks(data, &tokenizer, {.seq_len = 256, .samples = 32});
  const at::Tensor ids = torch::tensor(chunks.ids).view({chunks.count, chunks.length});
  const at::Tensor p = logits_of(folder, ids, nullptr);
  for (const auto activations : {quant::ActivationScaling::dynamic_token, quant::ActivationScaling::none}) {
    quant::PlanOptions o;
    o.activations = activations;
    o.weights = quant::WeightGranularity::tensor;
    const double tensor = kl(folder, ids, p, o);
    EXPECT_GT(tensor, 0);
    std::string table = "tensor " + std::to_string(1e3 * tensor);
    o.weights = quant::WeightGranularity::block;
    for (const std::int64_t block : {128, 64, 32}) {
      for (const bool power_of_two : {false, true}) {
        o.block = {block, block};
        o.power_of_two = power_of_two;
        const double found = kl(folder, ids, p, o);
        table += ", " + std::to_string(block) + (power_of_two ? " e8m0 " : " ") + std::to_string(1e3 * found);
        EXPECT_GT(found, 0);
        if (!power_of_two) {
          EXPECT_LE(found, 1.1 * tensor) << block;
        }
        EXPECT_LE(found, 2 * tensor) << block;  // a power of two costs up to one bit of the range, not of the precision
      }
    }
    ::testing::Test::RecordProperty(std::string("millinats_") + quant::name_of(activations), table);
  }
}

TEST(BlockKl, OfKjvByte) {
  expect_blocks_close(test::demo_data() / "kjv-byte-1.7M", test::demo_data() / "kjv_heldout_16k.txt");
}

TEST(BlockKl, OfStories260K) {
  FP8_NEED_TEST_DATA(data);
  expect_blocks_close(data / "models/stories260K", data / "text/ts_calib.txt");
}

}  // namespace
}  // namespace fp8::models
