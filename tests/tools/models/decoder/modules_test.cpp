// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <cstdint>
#include <map>

#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/decoder/attention.h"
#include "fp8/tools/models/decoder/mlp.h"
#include "fp8/tools/models/load.h"
#include "support/hpu_test.h"
#include "support/test_data.h"

namespace fp8::models {
namespace {

TEST(DottedModules, AreMadeWhereTheyAreMissing) {
  torch::nn::Module root("Root");
  const auto linear = add_module(root, "a.b.c", torch::nn::Linear(2, 3));
  const auto below = add_module(root, "a.b.c.d", torch::nn::Linear(3, 3));
  const auto beside = add_module(root, "a.e", torch::nn::Linear(1, 1));
  const auto modules = root.named_modules("", /*include_self=*/false);
  EXPECT_EQ(modules.size(), 5);  // a, a.b, a.b.c, a.b.c.d, a.e
  EXPECT_EQ(modules["a.b.c"].get(), linear.get());
  EXPECT_EQ(modules["a.b.c.d"].get(), below.get());
  EXPECT_EQ(modules["a.e"].get(), beside.get());
  EXPECT_EQ(&module_at(root, ""), &root);
  EXPECT_EQ(&module_at(root, "a.b"), modules["a.b"].get());
  EXPECT_EQ(module_at(root, "x.y", "Kind").name(), "Kind");
}

TEST(DottedModules, PathsHaveParentsAndLeaves) {
  EXPECT_EQ(parent_of("a.b.c"), "a.b");
  EXPECT_EQ(leaf_of("a.b.c"), "c");
  EXPECT_EQ(parent_of("a"), "");
  EXPECT_EQ(leaf_of("a"), "a");
  EXPECT_EQ(leaf_of("a."), "");
}

// The convolution beside a first layer against its formula in loops.

TEST(Convolution, IsTheFormula) {
  constexpr std::int64_t kHidden = 6, kGroups = 2, kKernel = 5, kLength = 4;  // shorter than the kernel
  const c10::NoGradGuard no_grad;
  at::manual_seed(6);
  DecoderConfig config;
  config.shape.hidden = kHidden;
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-3, .bias = true};
  config.convolution = {.kernel = kKernel, .groups = kGroups, .activation = Activation::tanh};
  Convolution convolution(config);
  for (auto& item : convolution->named_parameters()) item.value().set_data(at::randn(item.value().sizes()));
  const auto parameters = convolution->named_parameters();
  const auto &weight = parameters["conv.weight"], &bias = parameters["conv.bias"];
  ASSERT_EQ(weight.sizes(), (std::vector<std::int64_t>{kHidden, kHidden / kGroups, kKernel}));
  const auto x = at::randn({2, kLength, kHidden}), y = at::randn(x.sizes());

  auto sum = y.clone();
  constexpr auto kWidth = kHidden / kGroups;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < kLength; ++t)
      for (std::int64_t o = 0; o < kHidden; ++o) {
        double value = bias[o].item<double>();
        for (std::int64_t i = 0; i < kWidth; ++i)
          for (std::int64_t n = 0; n < kKernel; ++n) {
            const auto from = t + n - kKernel / 2;
            if (from < 0 || from >= kLength) continue;
            value += weight[o][i][n].item<double>() * x[b][from][o / kWidth * kWidth + i].item<double>();
          }
        sum[b][t][o] += std::tanh(value);
      }
  const auto centred = sum - sum.mean(-1, /*keepdim=*/true);
  const auto expected =
      centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * parameters["LayerNorm.weight"] +
      parameters["LayerNorm.bias"];
  EXPECT_LE((convolution->forward(x, y) - expected).abs().max().item<double>(), 1e-5);
}

// A model's logits and the tokens that it generates, with q, k, v and gate, up together and one by one: somebody who
// listens makes the difference, and sees each module by its own name.

struct Products final : runtime::LeafListener {
  std::map<std::string, int> of_module;
  void leaf_begins(const runtime::LeafRecord& leaf) override {
    if (leaf.op == "hpu::fp8_gemm_v2" || leaf.op == "fp8::weight_only_linear") ++of_module[std::string(leaf.module)];
  }
};

struct Generated {
  std::vector<std::int64_t> ids;
  std::vector<at::Tensor> logits;
};

constexpr int kTokens = 12;

Generated generate(CausalLM& model) {
  Generated out;
  const auto cache = model.make_cache(64);
  at::Tensor ids = (at::arange(20, at::kLong) * 11 % 96 + 32).unsqueeze(0);
  for (int i = 0; i < kTokens; ++i) {
    const at::Tensor logits = model.forward(ids.to(test::kHpu), cache.get());
    out.logits.push_back(logits.cpu());
    ids = out.logits.back().select(1, -1).argmax(-1, /*keepdim=*/true);
    out.ids.push_back(ids.item<std::int64_t>());
  }
  return out;
}

void expect_same(const quant::PlanOptions& options, at::ScalarType dtype, const std::string& what) {
  const torch::NoGradGuard no_grad;
  const auto loaded = load_model(test::demo_data() / "kjv-byte-1.7M",
                                 {.dtype = dtype, .device = test::kHpu, .attention = AttentionKind::fused});
  CausalLM& model = *loaded.model;
  quant::convert(model, options);
  quant::serve(model);
  const Generated together = generate(model);
  Products products;
  const runtime::Listening listening(products);
  const Generated alone = generate(model);
  EXPECT_EQ(together.ids, alone.ids) << what;
  for (std::size_t i = 0; i < alone.logits.size(); ++i)
    EXPECT_TRUE(test::same_bits(together.logits[i], alone.logits[i])) << what << ", token " << i;
  for (const char* name : {"self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    EXPECT_EQ(products.of_module["model.layers.0." + std::string(name)], kTokens) << what << ", " << name;
  const bool kept = !options.exclude.empty();
  EXPECT_EQ(products.of_module["model.layers.0.self_attn.k_proj"], kept ? 0 : kTokens) << what;
}

TEST(LinearTogetherInModels, LogitsAndTokensAreThoseOfEach) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto activations : {quant::ActivationScaling::dynamic_token, quant::ActivationScaling::none}) {
      quant::PlanOptions options;
      options.activations = activations;
      expect_same(options, dtype, name_of(activations));
      options.exclude = {"k_proj"};
      expect_same(options, dtype, std::string(name_of(activations)) + ", k in high precision");
    }
}

double value_of(Activation activation, double x) {
  switch (activation) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return x * (1 + std::erf(x / std::sqrt(2))) / 2;
    case Activation::gelu_tanh: return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::relu2: return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::tanh: return std::tanh(x);
  }
  return 0;
}

constexpr Activation kAll[] = {Activation::silu, Activation::gelu,  Activation::gelu_tanh,
                               Activation::relu, Activation::relu2, Activation::tanh};

TEST(Mlp, Activations) {
  const auto x = at::linspace(-5, 5, 41);
  for (const auto activation : kAll) {
    const auto y = activate(activation, x);
    for (std::int64_t i = 0; i < 41; ++i)
      EXPECT_NEAR(y[i].item<double>(), value_of(activation, x[i].item<double>()), 2e-6);
  }
}

Mlp made(DecoderConfig& config, torch::nn::Module& parent) {
  config.shape.hidden = 6;
  Mlp mlp(config, config.mlp, parent);
  std::int64_t k = 0;
  for (const auto& item : parent.named_parameters())
    item.value().set_data(
        ((at::arange(item.value().numel(), at::kFloat) + 7 * k++) * 0.61).sin().view(item.value().sizes()));
  return mlp;
}

TEST(Mlp, GateTimesUp) {
  const at::NoGradGuard no_grad;
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  for (const auto activation : kAll) {
    DecoderConfig separate, fused;
    for (auto* config : {&separate, &fused}) config->mlp = {.activation = activation, .inner = 5};
    fused.names.gate_up = "gate_up_proj";
    torch::nn::Module a("A"), b("B");
    auto one = made(separate, a), other = made(fused, b);
    const auto pa = a.named_parameters();
    const auto gate = at::linear(x, pa["gate_proj.weight"]), up = at::linear(x, pa["up_proj.weight"]);
    const auto expected = at::linear(activate(activation, gate) * up, pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(one.forward(x), expected, 1e-5, 1e-6));
    auto pb = b.named_parameters();
    pb["gate_up_proj.weight"].set_data(at::cat({pa["gate_proj.weight"], pa["up_proj.weight"]}));
    pb["down_proj.weight"].set_data(pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(other.forward(x), expected, 1e-5, 1e-6));
  }
}

TEST(Mlp, PlainWithBiases) {
  const at::NoGradGuard no_grad;
  DecoderConfig config;
  config.mlp = {.gated = false, .activation = Activation::relu, .up_bias = true, .down_bias = true, .inner = 5};
  config.names.up = "in.fc", config.names.down = "out.fc";
  torch::nn::Module parent("P");
  auto mlp = made(config, parent);
  const auto p = parent.named_parameters();
  EXPECT_EQ(p.size(), 4);
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  const auto expected =
      at::linear(at::relu(at::linear(x, p["in.fc.weight"], p["in.fc.bias"])), p["out.fc.weight"], p["out.fc.bias"]);
  EXPECT_TRUE(at::allclose(mlp.forward(x), expected, 1e-5, 1e-6));
}

}  // namespace
}  // namespace fp8::models
