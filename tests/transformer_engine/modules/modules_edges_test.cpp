// SPDX-License-Identifier: Apache-2.0
// The modules at their edges: NaN and infinite inputs, gradients that are zero, batches of one and of none, every
// dtype. Arguments that change no bit: modules_edges_arguments_test.

#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;

/// One of each kind that has products, [rows..., 32] -> [rows..., 32].
struct AnyModule {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> run;
};

std::vector<AnyModule> every_module(bool fp8_dpa) {
  std::vector<AnyModule> all;
  Linear linear(32, 32);
  all.push_back({"Linear", linear.ptr(), [linear](const at::Tensor& x) mutable { return linear(x); }});
  LayerNormLinear norm_linear(LayerNormLinearOptions{.in_features = 32, .out_features = 32});
  all.push_back(
      {"LayerNormLinear", norm_linear.ptr(), [norm_linear](const at::Tensor& x) mutable { return norm_linear(x); }});
  LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48, .activation = "swiglu"});
  all.push_back({"LayerNormMLP", mlp.ptr(), [mlp](const at::Tensor& x) mutable { return mlp(x); }});
  GroupedLinear grouped(2, 32, 32);
  all.push_back({"GroupedLinear", grouped.ptr(), [grouped](const at::Tensor& x) mutable {
                   const std::int64_t rows = x.numel() / 32;
                   return grouped(x, std::vector<std::int64_t>{rows / 3, rows - rows / 3});
                 }});
  TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
  o.hidden_dropout = o.attention_dropout = 0;
  o.fp8_dpa = fp8_dpa;
  TransformerLayer layer(o);
  all.push_back({"TransformerLayer", layer.ptr(), [layer](const at::Tensor& x) mutable { return layer(x); }});
  return all;
}

bool one_scale(const recipes::Recipe& recipe) {
  return std::holds_alternative<DelayedScaling>(recipe) || std::holds_alternative<recipes::CurrentScaling>(recipe);
}

/// Three more steps are near the exact one.
void expect_near(AnyModule& m, const at::Tensor& x, const at::Tensor& g, const recipes::Recipe& recipe,
                 const test::TrainingStep& exact) {
  test::TrainingStep after;
  for (int i = 0; i < 3; ++i) after = training_step(*m.module, x, g, recipe, m.run);
  EXPECT_LT(test::relative_error(after.y, exact.y), 0.125);
  EXPECT_LT(test::relative_error(after.dx, exact.dx), 0.25);
}

// A step that is NaN or infinite gives what f32 gives where that is not finite, and spoils no later step: scales stay
// finite, and the steps after it are near f32 again.
TEST(TeEdges, NanAndInfinityDoNotOutliveTheirStep) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes())
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)})
      for (AnyModule& m : every_module(one_scale(recipe))) {
        SCOPED_TRACE(recipes::describe(recipe) + " " + m.name + " " + std::to_string(bad));
        const auto exact = training_step(*m.module, x, g, std::nullopt, m.run);
        for (int i = 0; i < 2; ++i) training_step(*m.module, x, g, recipe, m.run);
        at::Tensor spoilt = x.clone();
        spoilt.select(0, 5).fill_(bad);  // the last of the sequence: those before do not see it
        const auto broken = training_step(*m.module, spoilt, g, recipe, m.run);
        EXPECT_TRUE(!std::isnan(bad) || broken.y.select(0, 5).isnan().all().item<bool>());
        training_step(*m.module, spoilt, g * bad, recipe, m.run);
        expect_near(m, x, g, recipe, exact);
        for (const auto& s : fp8_states(*m.module)) {
          const auto v = s.state->values();
          for (const auto* meta : {&v.forward, &v.backward})
            for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(std::size(meta->scale)); ++i)
              EXPECT_TRUE(std::isfinite(meta->scale[i]) && meta->scale[i] > 0) << s.name;
        }
      }
}

TEST(TeEdges, AGradientOfZeroIsZeroEverywhere) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes())
    for (AnyModule& m : every_module(one_scale(recipe))) {
      SCOPED_TRACE(recipes::describe(recipe) + " " + m.name);
      const auto exact = training_step(*m.module, x, g, std::nullopt, m.run);
      const auto zero = training_step(*m.module, x, torch::zeros_like(g), recipe, m.run);
      EXPECT_TRUE(zero.dx.eq(0).all().item<bool>());
      for (const auto& [name, gradient] : zero.gradients) EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << name;
      training_step(*m.module, torch::zeros_like(x), g, recipe, m.run);
      expect_near(m, x, g, recipe, exact);
    }
}

// No rows: results of no rows, gradients of zeros, and nothing learned about amaxes: the next step is the first one.
TEST(TeEdges, EmptyBatchesAndBatchesOfOne) {
  torch::manual_seed(3);
  const at::Tensor one = torch::randn({1, 1, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes())
    for (const at::Tensor& none : {torch::empty({0, 2, 32}, on_hpu()), torch::empty({3, 0, 32}, on_hpu())})
      for (AnyModule& m : every_module(one_scale(recipe))) {
        SCOPED_TRACE(recipes::describe(recipe) + " " + m.name);
        const auto exact = training_step(*m.module, one, one, std::nullopt, m.run);
        for (const bool fp8 : {false, true}) {
          const auto step =
              training_step(*m.module, none, none, fp8 ? std::optional<recipes::Recipe>(recipe) : std::nullopt, m.run);
          EXPECT_EQ(step.y.sizes(), none.sizes());
          EXPECT_EQ(step.dx.sizes(), none.sizes());
          for (const auto& [name, gradient] : step.gradients)
            EXPECT_TRUE(!gradient.defined() || gradient.eq(0).all().item<bool>()) << name;
        }
        expect_near(m, one, one, recipe, exact);
      }
}

TEST(TeEdges, OffIsTorchBitForBitInEveryDtype) {
  torch::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [rows, width] : {std::pair(6, 32), std::pair(1, 17), std::pair(0, 9)}) {
      const at::Tensor x = torch::randn({rows, width}, on_hpu()).to(dtype),
                       g = torch::randn({rows, 24}, on_hpu()).to(dtype);
      for (const bool bias : {true, false}) {
        Linear m(LinearOptions{.in_features = width, .out_features = 24, .bias = bias, .params_dtype = dtype});
        torch::nn::Linear torchs(torch::nn::LinearOptions(width, 24).bias(bias));
        torchs->to(test::kHpu, dtype);
        test::randomize(*m);
        test::copy_parameters(*m, *torchs);
        EXPECT_TRUE(
            same_step(training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return m(t); }),
                      training_step(*torchs, x, g, std::nullopt, [&](const at::Tensor& t) { return torchs(t); })))
            << dtype << rows;
      }
      LayerNormLinear norm(LayerNormLinearOptions{.in_features = width, .out_features = 24, .params_dtype = dtype});
      torch::nn::Sequential both(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                                 torch::nn::Linear(width, 24));
      both->to(test::kHpu, dtype);
      {
        const torch::NoGradGuard no_grad;
        auto p = both->named_parameters();
        p["0.weight"].copy_(norm->layer_norm_weight);
        p["0.bias"].copy_(norm->layer_norm_bias);
        p["1.weight"].copy_(norm->weight);
        p["1.bias"].copy_(norm->bias);
      }
      const auto a = training_step(*norm, x, g, std::nullopt, [&](const at::Tensor& t) { return norm(t); });
      const auto b = training_step(*both, x, g, std::nullopt, [&](const at::Tensor& t) { return both->forward(t); });
      EXPECT_TRUE(same_bits(a.y, b.y) && same_bits(a.dx, b.dx)) << dtype;
      EXPECT_TRUE(same_bits(a.gradients.at("weight"), b.gradients.at("1.weight"))) << dtype;
      EXPECT_TRUE(same_bits(a.gradients.at("layer_norm_weight"), b.gradients.at("0.weight"))) << dtype;
    }
}

// Gradients too, for the masks that torch has an argument for and for one that it has not.
TEST(TeEdges, AttentionOffHasTorchsGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const char* type : {"no_mask", "causal", "padding"}) {
      const auto leaf = [&](std::int64_t heads) {
        return torch::randn({2, 6, heads, 8}, on_hpu()).to(dtype).requires_grad_(true);
      };
      const at::Tensor q = leaf(4), k = leaf(2), v = leaf(2), g = torch::randn({2, 6, 32}, on_hpu()).to(dtype);
      at::Tensor masked;
      if (std::string(type) == "padding") masked = torch::arange(6, on_hpu()).ge(4).expand({2, 6}).view({2, 1, 1, 6});
      DotProductAttention m(DotProductAttentionOptions{.num_attention_heads = 4,
                                                       .kv_channels = 8,
                                                       .num_gqa_groups = 2,
                                                       .qkv_format = "bshd",
                                                       .attn_mask_type = type});
      m(q, k, v, masked).backward(g);
      const std::vector<at::Tensor> ours{q.grad().clone(), k.grad().clone(), v.grad().clone()};
      for (const at::Tensor* t : {&q, &k, &v}) t->mutable_grad() = at::Tensor();
      const std::optional<at::Tensor> mask =
          masked.defined() ? std::optional<at::Tensor>(masked.logical_not()) : std::nullopt;
      torch::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0,
                                          std::string(type) == "causal", std::nullopt, true)
          .transpose(1, 2)
          .flatten(2)
          .backward(g);
      EXPECT_TRUE(same_bits(ours[0], q.grad()) && same_bits(ours[1], k.grad()) && same_bits(ours[2], v.grad()))
          << type << dtype;
    }
}

// torch::nn::MultiheadAttention, whose in_proj_weight holds query, key and value one after the other.
TEST(TeEdges, MultiheadAttentionIsTorchs) {
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({6, 2, 32});
  MultiheadAttentionOptions o{.hidden_size = 32, .num_attention_heads = 4};
  o.attention_dropout = 0;
  o.fuse_qkv_params = true;
  o.qkv_weight_interleaved = false;
  MultiheadAttention m(o);
  test::randomize(*m);
  torch::nn::MultiheadAttention torchs(torch::nn::MultiheadAttentionOptions(32, 4));
  {
    const torch::NoGradGuard no_grad;
    torchs->in_proj_weight.copy_(m->qkv->weight);
    torchs->in_proj_bias.copy_(m->qkv->bias);
    torchs->out_proj->weight.copy_(m->proj->weight);
    torchs->out_proj->bias.copy_(m->proj->bias);
  }
  const at::Tensor above = torch::full({6, 6}, -INFINITY).triu(1);  // torch's C++ module adds its mask
  const at::Tensor expected = std::get<0>(torchs->forward(x, x, x, {}, false, above));
  EXPECT_TRUE(torch::allclose(m(test::hpu(x)).cpu(), expected, 1e-4, 1e-5));
}

// gamma = 1 + weight is added in f32: in bf16 a weight of 2^-9 would be lost beside the 1.
TEST(TeEdges, ZeroCenteredGammaKeepsItsPrecisionInBf16) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({64, 128}, on_hpu()).to(at::kBFloat16);
  for (const double w : {0x1p-9, 0x1.8p-8, 0.0}) {
    const NormOptions o{.normalized_shape = 128, .zero_centered_gamma = true, .params_dtype = at::kBFloat16};
    LayerNorm layer(o);
    RMSNorm rms(o);
    {
      const torch::NoGradGuard no_grad;
      layer->weight.fill_(w);
      rms->weight.fill_(w);
    }
    const at::Tensor d = x.cpu().to(at::kDouble), centered = d - d.mean(-1, true);
    const at::Tensor a = layer(x), b = rms(x);
    ASSERT_EQ(a.scalar_type(), at::kBFloat16);
    ASSERT_EQ(b.scalar_type(), at::kBFloat16);
    const at::Tensor exact_a = centered / (centered.square().mean(-1, true) + 1e-5).sqrt(),
                     exact_b = d / (d.square().mean(-1, true) + 1e-5).sqrt();
    for (const auto& [y, exact] : {std::pair(a, exact_a), std::pair(b, exact_b)}) {
      const at::Tensor v = y.cpu().to(at::kDouble);
      EXPECT_NEAR(((v * exact).sum() / exact.square().sum()).item<double>(), 1 + w,
                  2e-4);  // least squares of 8192 roundings
    }
    a.sum().backward();
    b.sum().backward();
    EXPECT_EQ(layer->weight.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(rms->weight.grad().scalar_type(), at::kBFloat16);
  }
}

}  // namespace
}  // namespace fp8::te
