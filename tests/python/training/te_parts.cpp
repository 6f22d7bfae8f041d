// SPDX-License-Identifier: Apache-2.0
// The network of test_te_trainer.py with the modules of C++, and its batches, for `fp8 train --load te_parts.so`: what
// is trained here has the bits of what Python trains.
#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/transformer_engine/te.h"

namespace fp8::test {
namespace {

constexpr std::int64_t kWidth = 32, kLength = 8, kRows = 4, kBatches = 10, kSeed = 5;

/// [rows, length, width] to the same sizes; `head` is one of LibTorch's, which convert_modules() converts.
struct Network : torch::nn::Module {
  Network() {
    layer = register_module("layer", te::TransformerLayer(te::TransformerLayerOptions{.hidden_size = kWidth,
                                                                                      .ffn_hidden_size = 2 * kWidth,
                                                                                      .num_attention_heads = 4,
                                                                                      .hidden_dropout = 0,
                                                                                      .attention_dropout = 0,
                                                                                      .attn_input_format = "bshd"}));
    up = register_module("up", te::LayerNormLinear(te::LayerNormLinearOptions{
                                   .in_features = kWidth, .out_features = 2 * kWidth, .normalization = "RMSNorm"}));
    down = register_module("down", te::Linear(te::LinearOptions{.in_features = 2 * kWidth, .out_features = kWidth}));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    draw();
  }
  /// Matrices, and what is added to ones and zeros, in the order of their names.
  void draw() {
    const torch::NoGradGuard no_grad;
    auto random = at::detail::createCPUGenerator(kSeed);
    std::map<std::string, at::Tensor> sorted;
    for (const auto& p : named_parameters()) sorted.emplace(p.key(), p.value());
    for (auto& [name, p] : sorted) {
      const auto drawn = 0.1 * at::randn(p.sizes(), random);
      p.copy_(p.dim() == 2 ? drawn.to(p.device()) : drawn.to(p.device()) + p);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return head(down(at::gelu(up(layer(x))))); }

  te::TransformerLayer layer{nullptr};
  te::LayerNormLinear up{nullptr};
  te::Linear down{nullptr};
  torch::nn::Linear head{nullptr};
};

struct Module : trainer::TrainingModule {
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t) override {
    return (net->forward(batch.tensors.at(0)) - batch.tensors.at(1)).square().mean();
  }
  trainer::Optimizers configure_optimizers() override {
    const auto options = runtime::optim::FusedAdamWOptions(1e-2).weight_decay(0.01);
    return {.optimizers = {std::make_shared<runtime::optim::FusedAdamW>(net->parameters(), options)}};
  }
  std::shared_ptr<Network> net = std::make_shared<Network>();
};

struct Data : trainer::DataModule {
  std::unique_ptr<trainer::BatchSource> train_dataloader() override {
    auto random = at::detail::createCPUGenerator(kSeed);
    const auto drawn = at::randn({2, kBatches * kRows, kLength, kWidth}, random);
    return std::make_unique<data::DataLoader>(
        std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{drawn[0], drawn[1]}),
        data::DataLoaderOptions{.batch_size = kRows, .shuffle = false});
  }
};

const trainer::PartRegistration<trainer::TrainingModule> g_module("TeNetwork", [](trainer::PartArguments&) {
  return std::make_shared<Module>();
});
const trainer::PartRegistration<trainer::DataModule> g_data("TeBatches", [](trainer::PartArguments&) {
  return std::make_shared<Data>();
});

}  // namespace
}  // namespace fp8::test
