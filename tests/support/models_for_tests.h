// SPDX-License-Identifier: Apache-2.0
// Small models on hpu with names as in language models, their weights and inputs from a fixed seed.
#pragma once

#include "support/hpu_test.h"

namespace fp8::test {

/// embed -> q/k/v -> o -> gate/up -> down -> lm_head; no attention, the point is the names.
struct BlockImpl : torch::nn::Module {
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr}, gate_proj{nullptr},
      up_proj{nullptr}, down_proj{nullptr};
  explicit BlockImpl(std::int64_t hidden, std::int64_t inner) {
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, bool bias = false) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    q_proj = linear("q_proj", hidden, hidden, true);
    k_proj = linear("k_proj", hidden, hidden / 2);
    v_proj = linear("v_proj", hidden, hidden / 2);
    o_proj = linear("o_proj", hidden, hidden);
    gate_proj = linear("gate_proj", hidden, inner);
    up_proj = linear("up_proj", hidden, inner);
    down_proj = linear("down_proj", inner, hidden);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + o_proj(at::tanh(q_proj(x)) * at::cat({k_proj(x), v_proj(x)}, -1));
    return h + down_proj(at::silu(gate_proj(h)) * up_proj(h));
  }
};
TORCH_MODULE(Block);

struct TinyLmImpl : torch::nn::Module {
  torch::nn::Embedding embed_tokens{nullptr};
  std::vector<Block> layers;
  torch::nn::Linear lm_head{nullptr};
  explicit TinyLmImpl(std::int64_t vocabulary = 48, std::int64_t hidden = 32, std::int64_t inner = 40, int depth = 2) {
    embed_tokens = register_module("embed_tokens", torch::nn::Embedding(vocabulary, hidden));
    for (int i = 0; i < depth; ++i)
      layers.push_back(register_module("layer_" + std::to_string(i), Block(hidden, inner)));
    lm_head = register_module("lm_head", torch::nn::Linear(torch::nn::LinearOptions(hidden, vocabulary).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = embed_tokens(ids);
    for (auto& layer : layers) h = layer(h);
    return lm_head(h);
  }
};
TORCH_MODULE(TinyLm);

/// On hpu, in eval mode, of `dtype`; the same weights for the same seed.
inline TinyLm tiny_lm(std::uint64_t seed = 1, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(seed);
  TinyLm model;
  model->to(dtype);
  model->to(kHpu);
  model->eval();
  return model;
}

inline at::Tensor token_ids(std::int64_t batch = 2, std::int64_t length = 5, std::int64_t vocabulary = 48) {
  torch::manual_seed(77);
  return hpu(torch::randint(vocabulary, {batch, length}, at::kLong));
}

/// A TorchScript module of class Linear, as scripting Python's nn.Linear gives; weight [out, in], bias [out] or
/// undefined.
inline torch::jit::Module script_linear(const at::Tensor& weight, const at::Tensor& bias,
                                        const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module m(c10::QualifiedName("__torch__.torch.nn.modules.linear.Linear"), unit, /*shouldMangle=*/true);
  m.register_parameter("weight", weight, false);
  if (bias.defined()) m.register_parameter("bias", bias, false);
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define(bias.defined() ? "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n"
                          : "def forward(self, x):\n  return torch.linear(x, self.weight)\n");
  return m;
}

/// relu(up(x)) through down: {"up", "down"}, f32 on hpu.
inline torch::jit::Module script_mlp(std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module m(c10::QualifiedName("__torch__.Mlp"), unit);
  m.register_module("up", script_linear(hpu(torch::randn({24, 16})), hpu(torch::randn({24})), unit));
  m.register_module("down", script_linear(hpu(torch::randn({8, 24})), at::Tensor(), unit));
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define("def forward(self, x):\n  return self.down.forward(torch.relu(self.up.forward(x)))\n");
  return m;
}

}  // namespace fp8::test
