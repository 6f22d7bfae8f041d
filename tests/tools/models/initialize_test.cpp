// SPDX-License-Identifier: Apache-2.0
// First weights by their statistics, and the gradients of a model on hpu against those on the CPU.
#include "fp8/tools/models/initialize.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>

#include "fp8/tools/models/registry.h"

namespace fp8::models {
namespace {

std::shared_ptr<CausalLM> fresh(std::uint64_t seed, at::Device device, bool tied = false) {
  const io::Json json = {{"model_type", "llama"},      {"vocab_size", 64},       {"hidden_size", 48},
                         {"intermediate_size", 80},    {"num_hidden_layers", 2}, {"num_attention_heads", 6},
                         {"num_key_value_heads", 2},   {"head_dim", 8},          {"max_position_embeddings", 64},
                         {"tie_word_embeddings", tied}};
  auto model = parse_config(json, "config.json").make();
  initialize(*model, 0.02, seed, device);
  return model;
}

TEST(Initialize, MatricesAreNormalNormsAreOne) {
  auto model = fresh(3, at::kCPU);
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  for (const auto& item : model->named_parameters()) {
    const auto& p = item.value();
    ASSERT_EQ(p.scalar_type(), at::kFloat);
    ASSERT_TRUE(p.requires_grad()) << item.key();
    if (p.dim() == 1) {
      EXPECT_TRUE(p.eq(1).all().item<bool>()) << item.key();
      continue;
    }
    sum += p.sum().item<double>();
    squares += p.square().sum().item<double>();
    count += p.numel();
  }
  const auto n = static_cast<double>(count);
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
}

TEST(Initialize, TheSeedDecides) {
  auto a = fresh(1, at::kCPU), b = fresh(1, at::kHPU), c = fresh(2, at::kCPU);
  const auto pa = a->named_parameters(), pb = b->named_parameters(), pc = c->named_parameters();
  for (const auto& item : pa) {
    EXPECT_TRUE(at::equal(item.value(), pb[item.key()].cpu())) << item.key();
    EXPECT_EQ(at::equal(item.value(), pc[item.key()]), item.value().dim() == 1) << item.key();
  }
}

TEST(Initialize, TiedWeightsStayOneTensor) {
  auto model = fresh(1, at::kCPU, /*tied=*/true);
  const auto parts = model->parts();
  EXPECT_TRUE(parts.head->weight.is_same(parts.words->weight));
  EXPECT_TRUE(parts.head->weight.isfinite().all().item<bool>());
}

/// d loss / d parameter of each parameter, on the CPU.
std::map<std::string, at::Tensor> gradients(at::Device device, const at::Tensor& ids, double& loss_value) {
  auto model = fresh(7, device);
  const auto input = ids.to(device);
  const auto logits = model->forward(input).to(at::kFloat);
  const auto rows = logits.slice(1, 0, -1).reshape({-1, logits.size(2)});
  const auto loss = torch::nn::functional::cross_entropy(rows, input.slice(1, 1).reshape({-1}));
  loss.backward();
  loss_value = loss.item<double>();
  std::map<std::string, at::Tensor> found;
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
    if (item.value().grad().defined()) found[item.key()] = item.value().grad().cpu();
  }
  return found;
}

TEST(Training, GradientsOnHpuAreThoseOfTheCpu) {
  const auto ids = torch::randint(0, 64, {3, 17}, at::kLong);
  double cpu_loss = 0, hpu_loss = 0;
  const auto cpu = gradients(at::kCPU, ids, cpu_loss), hpu = gradients(at::kHPU, ids, hpu_loss);
  // Near uniform at first: logits of 48 products of N(0, 0.02) with values near 1, standard deviation 0.14; the mean
  // of 48 of them 0.02.
  EXPECT_NEAR(cpu_loss, std::log(64), 0.02 * 0.02 * 48 / 2 + 5 * 0.02);
  EXPECT_NEAR(hpu_loss, cpu_loss, 1e-5);
  ASSERT_EQ(cpu.size(), hpu.size());
  for (const auto& [name, expected] : cpu) {
    const auto norm = expected.norm().item<double>();
    EXPECT_GT(norm, 0) << name;
    EXPECT_LT((hpu.at(name) - expected).norm().item<double>(), 1e-4 * norm) << name;
  }
}

}  // namespace
}  // namespace fp8::models
