// SPDX-License-Identifier: Apache-2.0
// More models as users write them: torch's own encoder, attention by hand, a Llama with tied weights, a block that is
// used three times, containers, functional calls, a recurrent network. None of them knows that fp8 exists.
#pragma once
#include "transformer_engine/training_models.h"

namespace fp8::te::test {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// torch's TransformerEncoder between an embedding and a head; [B, L] -> [B, L, classes].
struct TorchEncoderImpl : nn::Module {
  nn::Embedding embed{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
  explicit TorchEncoderImpl(std::int64_t words = 40, std::int64_t hidden = 32) {
    embed = register_module("embed", nn::Embedding(words, hidden));
    const auto layer = nn::TransformerEncoderLayerOptions(hidden, 4).dim_feedforward(64).dropout(0);
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 2)));
    head = register_module("head", nn::Linear(hidden, words));
  }
  at::Tensor forward(const at::Tensor& ids) { return head(encoder(embed(ids.t()))).transpose(0, 1); }
};
TORCH_MODULE(TorchEncoder);

/// Pre-norm blocks around nn::MultiheadAttention in a ModuleList; the feed-forward part is a Sequential, the activation
/// an AnyModule, the heads are in a ModuleDict.
struct AttentionBlockImpl : nn::Module {
  nn::MultiheadAttention attention{nullptr};
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Sequential mlp{nullptr};
  explicit AttentionBlockImpl(std::int64_t hidden) {
    attention = register_module("attention", nn::MultiheadAttention(hidden, 4));
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    mlp = register_module("mlp", nn::Sequential(nn::Linear(hidden, 2 * hidden), nn::AnyModule(nn::GELU()),
                                                nn::Linear(2 * hidden, hidden)));
  }
  at::Tensor forward(at::Tensor h) {
    const at::Tensor n = norm1(h);
    h = h + std::get<0>(attention(n, n, n));
    return h + mlp->forward(norm2(h));
  }
};
TORCH_MODULE(AttentionBlock);

struct ContainerNetImpl : nn::Module {
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::ModuleDict heads{nullptr};
  explicit ContainerNetImpl(std::int64_t words = 40, std::int64_t hidden = 32) {
    embed = register_module("embed", nn::Embedding(words, hidden));
    blocks = register_module("blocks", nn::ModuleList(AttentionBlock(hidden), AttentionBlock(hidden)));
    const std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>> named{
        {"words", nn::Linear(hidden, words).ptr()}, {"unused", nn::Linear(hidden, 3).ptr()}};
    heads = register_module("heads", nn::ModuleDict(named));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = embed(ids.t());
    for (const auto& block : *blocks) h = block->as<AttentionBlockImpl>()->forward(h);
    return heads["words"]->as<nn::LinearImpl>()->forward(h).transpose(0, 1);
  }
};
TORCH_MODULE(ContainerNet);

struct RmsNormImpl : nn::Module {
  at::Tensor weight;
  explicit RmsNormImpl(std::int64_t n) { weight = register_parameter("weight", torch::ones({n})); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor f = x.to(at::kFloat);
    return (f * torch::rsqrt(f.pow(2).mean(-1, true) + 1e-5) * weight).to(x.scalar_type());
  }
};
TORCH_MODULE(RmsNorm);

/// Rotary positions, grouped keys and values, SwiGLU, causal; the head is the embedding (tied).
struct LlamaLayerImpl : nn::Module {
  std::int64_t heads, kv, dim;
  nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr}, gate_proj{nullptr}, up_proj{nullptr},
      down_proj{nullptr};
  RmsNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  LlamaLayerImpl(std::int64_t hidden, std::int64_t heads_, std::int64_t kv_, std::int64_t inner)
      : heads(heads_), kv(kv_), dim(hidden / heads_) {
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
      return register_module(name, nn::Linear(nn::LinearOptions(in, out).bias(false)));
    };
    q_proj = linear("q_proj", hidden, hidden);
    k_proj = linear("k_proj", hidden, kv * dim);
    v_proj = linear("v_proj", hidden, kv * dim);
    o_proj = linear("o_proj", hidden, hidden);
    gate_proj = linear("gate_proj", hidden, inner);
    up_proj = linear("up_proj", hidden, inner);
    down_proj = linear("down_proj", inner, hidden);
    input_layernorm = register_module("input_layernorm", RmsNorm(hidden));
    post_attention_layernorm = register_module("post_attention_layernorm", RmsNorm(hidden));
  }
  static at::Tensor rotate(const at::Tensor& x) {
    const auto half = x.size(-1) / 2;
    const auto options = on_hpu();
    const at::Tensor rate = torch::pow(10000.0, -torch::arange(half, options) / static_cast<double>(half));
    const at::Tensor angle = torch::outer(torch::arange(x.size(2), options), rate);
    const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half), c = angle.cos().to(x.scalar_type()),
                     s = angle.sin().to(x.scalar_type());
    return torch::cat({a * c - b * s, b * c + a * s}, -1);
  }
  at::Tensor forward(at::Tensor h) {
    const at::Tensor n = input_layernorm(h);
    const auto split = [&](const at::Tensor& y, std::int64_t count) {
      return y.view({y.size(0), y.size(1), count, dim}).transpose(1, 2);
    };
    const at::Tensor q = rotate(split(q_proj(n), heads)),
                     k = rotate(split(k_proj(n), kv)).repeat_interleave(heads / kv, 1);
    const at::Tensor v = split(v_proj(n), kv).repeat_interleave(heads / kv, 1);
    const at::Tensor a = torch::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    h = h + o_proj(a.transpose(1, 2).reshape(h.sizes()));
    const at::Tensor m = post_attention_layernorm(h);
    return h + down_proj(torch::silu(gate_proj(m)) * up_proj(m));
  }
};
TORCH_MODULE(LlamaLayer);

struct LlamaImpl : nn::Module {
  nn::Embedding embed_tokens{nullptr};
  std::vector<LlamaLayer> layers;
  RmsNorm norm{nullptr};
  nn::Linear lm_head{nullptr};
  explicit LlamaImpl(std::int64_t words = 40, std::int64_t hidden = 32) {
    embed_tokens = register_module("embed_tokens", nn::Embedding(words, hidden));
    for (int i = 0; i < 2; ++i)
      layers.push_back(register_module("layers_" + std::to_string(i), LlamaLayer(hidden, 4, 2, 48)));
    norm = register_module("norm", RmsNorm(hidden));
    torch::nn::init::normal_(embed_tokens->weight, 0.0, 0.3);
    lm_head = register_module("lm_head", nn::Linear(nn::LinearOptions(hidden, words).bias(false)));
    lm_head->weight = embed_tokens->weight;  // tied; the parameter that Linear registered is left without a use
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = embed_tokens(ids);
    for (auto& layer : layers) h = layer(h);
    return lm_head(norm(h));
  }
};
TORCH_MODULE(Llama);

/// One block three times, as in ALBERT; its weights through functional calls; a matrix of the user's own.
struct SharedNetImpl : nn::Module {
  nn::Linear in{nullptr}, block{nullptr}, out{nullptr};
  at::Tensor mix;
  SharedNetImpl() {
    in = register_module("in", nn::Linear(20, 32));
    block = register_module("block", nn::Linear(32, 32));
    out = register_module("out", nn::Linear(32, 5));
    mix = register_parameter("mix", torch::eye(32) + 0.01 * torch::randn({32, 32}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = F::linear(x, in->weight, in->bias);
    for (int i = 0; i < 3; ++i) h = h + torch::tanh(F::linear(h, block->weight, block->bias));
    return out(torch::matmul(h, mix));
  }
};
TORCH_MODULE(SharedNet);

/// The class of a sequence from the last state of an LSTM.
struct LstmNetImpl : nn::Module {
  nn::Embedding embed{nullptr};
  nn::LSTM rnn{nullptr};
  nn::Linear head{nullptr};
  LstmNetImpl() {
    embed = register_module("embed", nn::Embedding(12, 16));
    rnn = register_module("rnn", nn::LSTM(nn::LSTMOptions(16, 32).batch_first(true)));
    head = register_module("head", nn::Linear(32, 12));
  }
  at::Tensor forward(const at::Tensor& ids) { return head(std::get<0>(rnn(embed(ids))).select(1, ids.size(1) - 1)); }
};
TORCH_MODULE(LstmNet);

/// Each position tells the word before it.
template <class Model>
Task words_task(Model model, std::int64_t words = 40) {
  const at::Tensor ids = torch::randint(words, {8, 12}, at::kLong);
  return task_of(model, ids, ids.roll(1, 1));
}
inline Task torch_encoder_task() {
  torch::manual_seed(21);
  return words_task(TorchEncoder());
}
inline Task container_task() {
  torch::manual_seed(22);
  return words_task(ContainerNet());
}
inline Task llama_task() {
  torch::manual_seed(23);
  return words_task(Llama());
}
inline Task shared_task() {
  torch::manual_seed(24);
  SharedNet net;
  const at::Tensor x = torch::randn({64, 20});
  return task_of(net, x, labels_of(x, 5));
}
inline Task lstm_task() {
  torch::manual_seed(25);
  LstmNet net;
  const at::Tensor ids = torch::randint(12, {32, 5}, at::kLong);
  return task_of(net, ids, ids.select(1, 3));
}

}  // namespace fp8::te::test
