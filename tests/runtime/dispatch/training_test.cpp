// SPDX-License-Identifier: Apache-2.0
// Five training steps on hpu and on the CPU: losses, gradients and weights are equal bit for bit, because the fallback
// runs the very kernels that the CPU runs, on the same bytes.
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

/// Embedding, LayerNorm, causal SDPA, GELU, Dropout, Linear.
struct TextNetImpl : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::Dropout dropout{nullptr};

  TextNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(20, 16));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    qkv = register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(16, 48).bias(false)));
    up = register_module("up", torch::nn::Linear(16, 40));
    down = register_module("down", torch::nn::Linear(40, 16));
    head = register_module("head", torch::nn::Linear(16, 20));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = embedding(ids);
    const auto parts = qkv(norm(h)).view({ids.size(0), ids.size(1), 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    h = h + attended.transpose(1, 2).reshape({ids.size(0), ids.size(1), 16});
    h = h + dropout(down(at::gelu(up(norm(h)))));
    return at::log_softmax(head(h), -1);
  }

  at::Tensor loss(const at::Tensor& ids) {
    return at::nll_loss(forward(ids).flatten(0, 1), at::roll(ids, 1, 1).flatten());
  }
  static at::Tensor batch() { return at::randint(0, 20, {3, 9}, at::kLong); }
};
TORCH_MODULE(TextNet);

/// Conv2d, BatchNorm2d, max pooling, a plain matmul, softmax.
struct ImageNetImpl : torch::nn::Module {
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  at::Tensor mix;

  ImageNetImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    second =
        register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).stride(2).groups(2).bias(false)));
    mix = register_parameter("mix", at::randn({8, 10}) * 0.3);
  }

  at::Tensor loss(const at::Tensor& images) {
    const at::Tensor h = at::max_pool2d(at::relu(norm(first(images))), 2);
    const at::Tensor logits = at::matmul(at::relu(second(h)).mean({2, 3}), mix);
    const at::Tensor target = at::arange(images.size(0), images.options().dtype(at::kLong)) % 10;
    return at::nll_loss(at::softmax(logits, -1).log(), target);
  }
  static at::Tensor batch() { return at::randn({5, 3, 12, 12}); }
};
TORCH_MODULE(ImageNet);

struct Trace {
  std::vector<at::Tensor>
      values;  ///< per step: loss, clipped norm, then each parameter's gradient and value; buffers at the end
};

template <typename Net, typename Optimizer, typename Options>
Trace train(at::Device device, const Options& options) {
  torch::manual_seed(11);
  Net net;
  const at::Tensor batch = Net::ContainedType::batch();
  net->to(device);
  const at::Tensor input = batch.to(device);
  Optimizer optimizer(net->parameters(), options);
  torch::manual_seed(12);
  Trace trace;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = net->loss(input);
    loss.backward();
    trace.values.push_back(loss.detach().cpu());
    trace.values.push_back(at::tensor(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5)));
    optimizer.step();
    for (const auto& p : net->parameters()) {
      EXPECT_EQ(p.device(), device);
      EXPECT_EQ(p.grad().device(), device);
      trace.values.push_back(p.grad().detach().cpu().clone());
      trace.values.push_back(p.detach().cpu().clone());
    }
  }
  for (const auto& b : net->buffers()) trace.values.push_back(b.cpu().clone());
  return trace;
}

template <typename Net, typename Optimizer, typename Options>
void expect_equal(const Options& options) {
  const Trace device = train<Net, Optimizer>(kHpu, options), cpu = train<Net, Optimizer>(at::kCPU, options);
  ASSERT_EQ(device.values.size(), cpu.values.size());
  for (std::size_t i = 0; i < cpu.values.size(); ++i)
    EXPECT_TRUE(same_bits(device.values[i], cpu.values[i])) << "value " << i;
  EXPECT_FALSE(same_bits(cpu.values[0], cpu.values[cpu.values.size() / 5])) << "it did not learn";
}

TEST(Training, TextModelWithAdamEqualsTheCpu) {
  expect_equal<TextNet, torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
}
TEST(Training, TextModelWithAdamWEqualsTheCpu) {
  expect_equal<TextNet, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}
TEST(Training, ImageModelWithAdamEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
}
TEST(Training, ImageModelWithAdamWEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
}
TEST(Training, ImageModelWithSgdMomentumEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true));
}

TEST(Training, DoubleBackwardEqualsTheCpu) {
  const auto second_order = [](at::Device device) {
    torch::manual_seed(5);
    torch::nn::Linear layer(6, 3);
    const at::Tensor x = at::randn({4, 6});
    layer->to(device);
    const auto first =
        torch::autograd::grad({layer(x.to(device)).tanh().sum()}, {layer->weight}, {}, true, /*create_graph=*/true);
    first[0].square().sum().backward();
    return layer->weight.grad().cpu();
  };
  EXPECT_TRUE(same_bits(second_order(kHpu), second_order(at::kCPU)));
}

TEST(Training, RecurrentLayersRunAndAgree) {
  const auto run = [](at::Device device) {
    torch::manual_seed(5);
    torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).num_layers(2).batch_first(true));
    const at::Tensor x = at::randn({2, 7, 6});
    gru->to(device);
    const auto [y, h] = gru->forward(x.to(device));
    y.sum().backward();
    return at::cat({y.flatten(), h.flatten(), gru->parameters()[0].grad().flatten()}).detach().cpu();
  };
  EXPECT_TRUE(
      at::allclose(run(kHpu), run(at::kCPU), 1e-5, 1e-6));  // the CPU may take another path for recurrent layers
}

}  // namespace
}  // namespace fp8::test
