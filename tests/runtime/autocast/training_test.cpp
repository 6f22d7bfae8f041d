// SPDX-License-Identifier: Apache-2.0
// Training in a region: f32 parameters and gradients, products in bf16, losses near those of f32. Models as users write
// them.
#include <functional>
#include <thread>

#include "fp8/runtime/autocast/autocast.h"
#include "support/hpu_test.h"
#include "support/typed_models.h"

namespace fp8::test {
namespace {

namespace autocast = runtime::autocast;
using autocast::AutocastGuard;

using Forward = std::function<at::Tensor()>;

/// Losses of three AdamW steps; forward and loss in a region or not, backward outside of it.
std::vector<double> losses_of(torch::nn::Module& model, const Forward& loss_of, bool cast) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const AutocastGuard region(at::kBFloat16, cast);
      loss = loss_of();
    }
    loss.backward();
    for (const auto& p : model.named_parameters()) {
      EXPECT_EQ(p.value().scalar_type(), at::kFloat) << p.key();
      EXPECT_TRUE(!p.value().grad().defined() || p.value().grad().scalar_type() == at::kFloat) << p.key();
    }
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// bf16 keeps 8 bits: the losses are near f32's and not equal to them; they fall.
void expect_near(const std::vector<double>& cast, const std::vector<double>& exact) {
  ASSERT_EQ(cast.size(), exact.size());
  for (std::size_t i = 0; i < cast.size(); ++i) {
    EXPECT_NEAR(cast[i], exact[i], 0.02 * std::abs(exact[i])) << "step " << i;
    EXPECT_NE(cast[i], exact[i]) << "step " << i;
  }
  EXPECT_LT(cast.back(), cast.front());
}

TEST(Training, TwoLayerNet) {
  const auto run = [](bool cast) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
    net->to(kHpu);
    const at::Tensor x = at::randn({32, 8}, on_hpu()), y = at::randn({32, 4}, on_hpu());
    return losses_of(
        *net,
        [&] {
          const at::Tensor out = net->forward(x);
          EXPECT_EQ(out.scalar_type(), cast ? at::kBFloat16 : at::kFloat);
          const at::Tensor loss = at::mse_loss(out, y);
          EXPECT_EQ(loss.scalar_type(), at::kFloat);
          return loss;
        },
        cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, GradientsAreThoseOfTheCastProducts) {
  const at::Tensor x = at::randn({3, 4}, on_hpu()), w = at::randn({5, 4}, on_hpu());
  at::Tensor leaf = w.clone().requires_grad_(true), by_hand = w.clone().requires_grad_(true);
  at::Tensor y;
  {
    const AutocastGuard region;
    y = at::linear(x, leaf);
  }
  y.sum().backward();
  at::linear(x.to(at::kBFloat16), by_hand.to(at::kBFloat16)).sum().backward();
  EXPECT_TRUE(same_bits(leaf.grad(), by_hand.grad()));
}

TEST(Training, BertEncoder) {
  for (const bool fused : {true, false}) {
    const auto run = [&](bool cast) {
      torch::manual_seed(2);
      Bert model(fused);
      model->to(kHpu);
      const at::Tensor ids = hpu(at::randint(97, {4, 16}, at::kLong));
      const at::Tensor target = at::randn({4, 16, 48}, on_hpu());
      return losses_of(*model, [&] { return at::mse_loss(model(ids), target); }, cast);
    };
    expect_near(run(true), run(false));
  }
}

TEST(Training, ResidualNetwork) {
  const auto run = [](bool cast) {
    torch::manual_seed(3);
    ResNet model;
    model->to(kHpu);
    const at::Tensor x = at::randn({8, 3, 12, 12}, on_hpu());
    const at::Tensor classes = hpu(at::randint(10, {8}, at::kLong));
    return losses_of(*model, [&] { return at::cross_entropy_loss(model(x), classes); }, cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, RecurrentNetwork) {
  const auto run = [](bool cast) {
    torch::manual_seed(4);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 16).num_layers(2).batch_first(true));
    lstm->to(kHpu);
    const at::Tensor x = at::randn({4, 6, 8}, on_hpu()), y = at::randn({4, 6, 16}, on_hpu());
    return losses_of(*lstm, [&] { return at::mse_loss(std::get<0>(lstm(x)), y); }, cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, AttentionRunsInTheRegionsType) {
  at::Tensor q = at::randn({1, 2, 4, 8}, on_hpu()).requires_grad_(true);
  const AutocastGuard region;
  const at::Tensor y = at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(q.grad().scalar_type(), at::kFloat);
}

TEST(Training, TwoThreadsWithRegionsOfTheirOwn) {
  const auto run = [](at::ScalarType dtype, bool cast, at::ScalarType expected) {
    const at::Tensor x = at::randn({8, 8}, on_hpu());
    int wrong = 0;
    for (int i = 0; i < 200; ++i) {
      at::Tensor w = x.clone().requires_grad_(true), y;
      {
        const AutocastGuard region(dtype, cast);
        y = at::softmax(at::linear(x, w), -1);
      }
      y.sum().backward();
      wrong += y.scalar_type() != expected || w.grad().scalar_type() != at::kFloat;
    }
    return wrong;
  };
  int other = -1;
  std::thread thread([&] { other = run(at::kHalf, true, at::kHalf); });
  EXPECT_EQ(run(at::kBFloat16, true, at::kBFloat16), 0);
  EXPECT_EQ(run(at::kBFloat16, false, at::kFloat), 0);
  thread.join();
  EXPECT_EQ(other, 0);
}

}  // namespace
}  // namespace fp8::test
