// SPDX-License-Identifier: Apache-2.0
// A BERT encoder and a residual network as typed modules, small, with the wrapper modules where attention multiplies:
// models as users bring them, for tests of measuring and quantizing all kinds of modules at once. Weights and inputs
// come from fixed seeds.
#pragma once
#include <torch/torch.h>

#include <cmath>

#include "fp8/runtime/modules/op_modules.h"

namespace fp8::test {

struct BertSize {
  std::int64_t vocabulary = 97, hidden = 48, heads = 4, inner = 96, layers = 2, positions = 32;
};

/// Hugging Face's names: attention.self.query ..., attention.output.dense, intermediate.dense, output.dense.
struct BertLayerImpl : torch::nn::Module {
  /// fused: one fused attention, else two products and a softmax.
  BertLayerImpl(const BertSize& s, bool fused) : heads(s.heads) {
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    const auto norm = [&](const char* name) {
      return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
    };
    query = linear("query", s.hidden, s.hidden);
    key = linear("key", s.hidden, s.hidden);
    value = linear("value", s.hidden, s.hidden);
    dense = linear("attention_output", s.hidden, s.hidden);
    intermediate = linear("intermediate", s.hidden, s.inner);
    output = linear("output", s.inner, s.hidden);
    attention_norm = norm("attention_norm");
    output_norm = norm("output_norm");
    if (fused) {
      sdpa = register_module("sdpa", runtime::ModuleFusedSDPA());
    } else {
      matmul_qk = register_module("matmul_qk", runtime::Matmul());
      softmax = register_module("softmax", runtime::Softmax());
      matmul_av = register_module("matmul_av", runtime::Matmul());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto split = [&](const at::Tensor& y) { return y.view({y.size(0), y.size(1), heads, -1}).transpose(1, 2); };
    const at::Tensor q = split(query(x)), k = split(key(x)), v = split(value(x));
    const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
    const at::Tensor a = sdpa ? sdpa(q, k, v) : matmul_av(softmax(matmul_qk(q, k.transpose(-2, -1)) * scale), v);
    const at::Tensor h = attention_norm(x + dense(a.transpose(1, 2).reshape(x.sizes())));
    return output_norm(h + output(at::gelu(intermediate(h))));
  }
  std::int64_t heads;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr}, intermediate{nullptr},
      output{nullptr};
  torch::nn::LayerNorm attention_norm{nullptr}, output_norm{nullptr};
  runtime::ModuleFusedSDPA sdpa{nullptr};
  runtime::Matmul matmul_qk{nullptr}, matmul_av{nullptr};
  runtime::Softmax softmax{nullptr};
};
TORCH_MODULE(BertLayer);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(bool fused, const BertSize& s = {}) : size(s) {
    words = register_module("word_embeddings", torch::nn::Embedding(s.vocabulary, s.hidden));
    positions = register_module("position_embeddings", torch::nn::Embedding(s.positions, s.hidden));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
    for (std::int64_t i = 0; i < s.layers; ++i)
      layers.push_back(register_module("layer_" + std::to_string(i), BertLayer(s, fused)));
    pooler = register_module("pooler", torch::nn::Linear(s.hidden, s.hidden));
  }
  /// ids [B, L] -> [B, L, hidden]; the first position goes through the pooler.
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor index = torch::arange(ids.size(1), ids.options());
    at::Tensor h = norm(words(ids) + positions(index));
    for (auto& layer : layers) h = layer(h);
    return at::cat({at::tanh(pooler(h.narrow(1, 0, 1))), h.narrow(1, 1, h.size(1) - 1)}, 1);
  }
  BertSize size;
  torch::nn::Embedding words{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  std::vector<BertLayer> layers;
  torch::nn::Linear pooler{nullptr};
};
TORCH_MODULE(Bert);

/// conv-norm-relu-conv-norm + shortcut (a strided 1x1 convolution where the shape changes).
struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    const auto conv = [&](const char* name, std::int64_t from, std::int64_t kernel, std::int64_t s) {
      return register_module(
          name,
          torch::nn::Conv2d(torch::nn::Conv2dOptions(from, out, kernel).stride(s).padding(kernel / 2).bias(false)));
    };
    conv1 = conv("conv1", in, 3, stride);
    conv2 = conv("conv2", out, 3, 1);
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(out));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(out));
    if (stride != 1 || in != out) downsample = conv("downsample", in, 1, stride);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = bn2(conv2(at::relu(bn1(conv1(x)))));
    return at::relu(y + (downsample ? downsample(x) : x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, downsample{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
};
TORCH_MODULE(BasicBlock);

struct ResNetImpl : torch::nn::Module {
  ResNetImpl() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1).bias(false)));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(16));
    layer1 = register_module("layer1", BasicBlock(16, 16, 1));
    layer2 = register_module("layer2", BasicBlock(16, 32, 2));
    fc = register_module("fc", torch::nn::Linear(32, 10));
  }
  /// x [B, 3, H, W] -> [B, 10].
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = layer2(layer1(at::relu(bn1(conv1(x)))));
    return fc(h.mean({2, 3}));
  }
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  BasicBlock layer1{nullptr}, layer2{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

}  // namespace fp8::test
