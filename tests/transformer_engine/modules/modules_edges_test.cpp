// SPDX-License-Identifier: Apache-2.0
// The modules at their edges: NaN and infinite inputs, gradients that are zero, batches of one and of none, every
// dtype; and the arguments of the field that change where values are kept or how parameters are cut, which change no
// bit of the results.
#include <cmath>

#include "fp8/runtime/device/memory.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/grouped_linear.h"
#include "fp8/transformer_engine/modules/transformer_layer.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "module_checks.h"

namespace fp8::te {
namespace {

namespace F = torch::nn::functional;
using recipes::DelayedScaling;
using test::on_hpu;
using test::same_bits;
using test::same_step;
using test::throws_with;
using test::training_step;

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

// A step that is NaN or infinite gives what f32 gives where that is not finite, and spoils no later step: scales stay
// finite, and the steps after it are near f32 again.
TEST(TeEdges, NanAndInfinityDoNotOutliveTheirStep) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      for (AnyModule& m : every_module(one_scale(recipe))) {
        const std::string where = recipes::describe(recipe) + " " + m.name + " " + std::to_string(bad);
        const auto exact = training_step(*m.module, x, g, std::nullopt, m.run);
        for (int i = 0; i < 2; ++i) training_step(*m.module, x, g, recipe, m.run);
        at::Tensor spoilt = x.clone();
        spoilt.select(0, 5).fill_(bad);  // the last of the sequence: those before do not see it
        const auto broken = training_step(*m.module, spoilt, g, recipe, m.run);
        EXPECT_TRUE(!std::isnan(bad) || broken.y.select(0, 5).isnan().all().item<bool>()) << where;
        training_step(*m.module, spoilt, g * bad, recipe, m.run);
        test::TrainingStep after;
        for (int i = 0; i < 3; ++i) after = training_step(*m.module, x, g, recipe, m.run);
        EXPECT_LT(test::norm_error(after.y, exact.y), 0.125) << where;
        EXPECT_LT(test::norm_error(after.dx, exact.dx), 0.25) << where;
        for (const auto& s : fp8_states(*m.module)) {
          const auto v = s.state->values();
          for (const auto* meta : {&v.forward, &v.backward}) {
            for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(std::size(meta->scale)); ++i) {
              EXPECT_TRUE(std::isfinite(meta->scale[i]) && meta->scale[i] > 0) << where << " " << s.name;
            }
          }
        }
      }
    }
  }
}

TEST(TeEdges, AGradientOfZeroIsZeroEverywhere) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    for (AnyModule& m : every_module(one_scale(recipe))) {
      const std::string where = recipes::describe(recipe) + " " + m.name;
      const auto exact = training_step(*m.module, x, g, std::nullopt, m.run);
      const auto zero = training_step(*m.module, x, torch::zeros_like(g), recipe, m.run);
      EXPECT_TRUE(zero.dx.eq(0).all().item<bool>()) << where;
      for (const auto& [name, gradient] : zero.gradients)
        EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << where << name;
      training_step(*m.module, torch::zeros_like(x), g, recipe, m.run);
      test::TrainingStep after;
      for (int i = 0; i < 3; ++i) after = training_step(*m.module, x, g, recipe, m.run);
      EXPECT_LT(test::norm_error(after.y, exact.y), 0.125) << where;
      EXPECT_LT(test::norm_error(after.dx, exact.dx), 0.25) << where;
    }
  }
}

// No rows: results of no rows, gradients of zeros, and nothing learned about amaxes: the next step is the first one.
TEST(TeEdges, EmptyBatchesAndBatchesOfOne) {
  torch::manual_seed(3);
  const at::Tensor one = torch::randn({1, 1, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    for (const at::Tensor& none : {torch::empty({0, 2, 32}, on_hpu()), torch::empty({3, 0, 32}, on_hpu())}) {
      for (AnyModule& m : every_module(one_scale(recipe))) {
        const std::string where = recipes::describe(recipe) + " " + m.name;
        const auto exact = training_step(*m.module, one, one, std::nullopt, m.run);
        for (const bool fp8 : {false, true}) {
          const auto step =
              training_step(*m.module, none, none, fp8 ? std::optional<recipes::Recipe>(recipe) : std::nullopt, m.run);
          EXPECT_EQ(step.y.sizes(), none.sizes()) << where;
          EXPECT_EQ(step.dx.sizes(), none.sizes()) << where;
          for (const auto& [name, gradient] : step.gradients) {
            EXPECT_TRUE(!gradient.defined() || gradient.eq(0).all().item<bool>()) << where << " " << name;
          }
        }
        test::TrainingStep after;
        for (int i = 0; i < 3; ++i) after = training_step(*m.module, one, one, recipe, m.run);
        EXPECT_LT(test::norm_error(after.y, exact.y), 0.125) << where;
        EXPECT_LT(test::norm_error(after.dx, exact.dx), 0.25) << where;
      }
    }
  }
}

// fp8 off: torch's modules and functions in every dtype, results and gradients.
TEST(TeEdges, OffIsTorchBitForBitInEveryDtype) {
  torch::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
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
}

// Gradients too, for the masks that torch has an argument for and for one that it has not.
TEST(TeEdges, AttentionOffHasTorchsGradients) {
  torch::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
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

// ---- arguments that change no bit

TEST(TeArguments, PartsOfAWeightAreTheWholeWeight) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({5, 32}, on_hpu()), g = torch::randn({5, 48}, on_hpu());
  const ParametersSplit split{{"query_", 16}, {"key", 8}, {"value", 24}};
  for (const auto& recipe : test::training_recipes()) {
    const auto check = [&](auto whole, auto parts) {
      {
        const torch::NoGradGuard no_grad;
        auto own = parts->named_parameters();
        const at::Tensor w = whole->named_parameters()["weight"], b = whole->named_parameters()["bias"];
        b.normal_();
        std::int64_t row = 0;
        for (const auto& [name, rows] : ParametersSplit{{"query", 16}, {"key", 8}, {"value", 24}}) {
          own[name + "_weight"].copy_(w.slice(0, row, row + rows));
          own[name + "_bias"].copy_(b.slice(0, row, row + rows));
          row += rows;
        }
      }
      EXPECT_FALSE(parts->weight.defined());
      for (const std::optional<recipes::Recipe>& r :
           {std::optional<recipes::Recipe>(), std::optional<recipes::Recipe>(recipe)}) {
        for (int i = 0; i < 2; ++i) {
          const auto a = training_step(*whole, x, g, r, [&](const at::Tensor& t) { return whole(t); });
          const auto b = training_step(*parts, x, g, r, [&](const at::Tensor& t) { return parts(t); });
          EXPECT_TRUE(same_bits(a.y, b.y) && same_bits(a.dx, b.dx)) << recipes::describe(recipe);
          for (const char* kind : {"weight", "bias"}) {
            const auto part = [&](const char* name) { return b.gradients.at(std::string(name) + "_" + kind); };
            EXPECT_TRUE(same_bits(a.gradients.at(kind), torch::cat({part("query"), part("key"), part("value")})))
                << kind;
          }
        }
      }
      const auto copy = std::dynamic_pointer_cast<typename std::decay_t<decltype(*parts)>>(parts->clone());
      EXPECT_TRUE(same_bits(copy->forward(x), parts(x)));
    };
    check(Linear(LinearOptions{.in_features = 32, .out_features = 48, .name = "p"}),
          Linear(LinearOptions{.in_features = 32, .out_features = 48, .name = "p", .parameters_split = split}));
    check(LayerNormLinear(LayerNormLinearOptions{.in_features = 32, .out_features = 48, .name = "p"}),
          LayerNormLinear(
              LayerNormLinearOptions{.in_features = 32, .out_features = 48, .name = "p", .parameters_split = split}));
  }
  const auto make = [](ParametersSplit s) {
    return [s] { Linear l(LinearOptions{.in_features = 4, .out_features = 8, .parameters_split = s}); };
  };
  EXPECT_TRUE(throws_with({"[te::Linear] parameters_split: found 6 rows in all", "out_features = 8"},
                          make({{"a", 4}, {"b", 2}})));
  EXPECT_TRUE(throws_with({"parameters_split: found {\"a\", 0}", "1 to 8 rows"}, make({{"a", 0}, {"b", 8}})));
  const quantized_model_init init({.recipe = recipes::CurrentScaling{}});
  EXPECT_TRUE(
      throws_with({"parameters_split: found 2 parts", "quantized_model_init: none"}, make({{"a", 4}, {"b", 4}})));
}

// A weight of somebody else's: the same tensor, no copy, and nothing drawn.
TEST(TeArguments, AWeightMayComeFromOutside) {
  torch::manual_seed(9);
  torch::nn::Linear owner(8, 16);
  owner->to(test::kHpu);
  Linear m(LinearOptions{.in_features = 8, .out_features = 16, .name = "tied", .skip_weight_param_allocation = true});
  const at::Tensor x = torch::randn({3, 8}, on_hpu());
  EXPECT_TRUE(m->parameters().empty());
  EXPECT_TRUE(throws_with({"[te::Linear] 'tied': weight: found none", "set_weight()"}, [&] { m(x); }));
  EXPECT_TRUE(
      throws_with({"weight: found sizes [8, 16]", "[16, 8]"}, [&] { m->set_weight(owner->weight.t(), owner->bias); }));
  EXPECT_TRUE(throws_with({"bias: found none", "[16]"}, [&] { m->set_weight(owner->weight); }));
  m->set_weight(owner->weight, owner->bias);
  EXPECT_TRUE(same_bits(m(x), owner(x)));
  EXPECT_TRUE(m->named_parameters()["weight"].is_same(owner->weight));
  m(x).sum().backward();
  EXPECT_TRUE(owner->weight.grad().defined());
  const auto copy = std::dynamic_pointer_cast<LinearImpl>(m->clone());
  EXPECT_TRUE(same_bits(copy->forward(x), owner(x)));
  EXPECT_FALSE(copy->weight.is_same(owner->weight));
  Linear own(8, 16);
  EXPECT_TRUE(throws_with({"set_weight()", "skip_weight_param_allocation"},
                          [&] { own->set_weight(owner->weight, owner->bias); }));
}

TEST(TeArguments, MinimizeMemoryAndSaveOriginalInputChangeNoBit) {
  torch::manual_seed(10);
  const at::Tensor x = torch::randn({5, 2, 32}, on_hpu()), g = torch::randn({5, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    const auto check = [&](auto plain, auto other, auto&& run) {
      test::copy_parameters(*plain, *other);
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_step(
            training_step(*plain, x * (3 - i), g, recipe, [&](const at::Tensor& t) { return run(plain, t); }),
            training_step(*other, x * (3 - i), g, recipe, [&](const at::Tensor& t) { return run(other, t); })))
            << recipes::describe(recipe) << plain->name() << i;
      }
    };
    const auto run = [](auto& m, const at::Tensor& t) { return m(t); };
    const auto split = [](GroupedLinear& m, const at::Tensor& t) { return m(t, std::vector<std::int64_t>{7, 3}); };
    const LinearOptions linear{.in_features = 32, .out_features = 32};
    for (const bool minimize : {false, true}) {
      LinearOptions other = linear;
      other.minimize_memory = minimize;
      other.save_original_input = !minimize;
      check(Linear(linear), Linear(other), run);
    }
    check(GroupedLinear(2, 32, 32),
          GroupedLinear(
              GroupedLinearOptions{.num_gemms = 2, .in_features = 32, .out_features = 32, .save_original_input = true}),
          split);
    check(GroupedLinear(2, 32, 32),
          GroupedLinear(
              GroupedLinearOptions{.num_gemms = 2, .in_features = 32, .out_features = 32, .minimize_memory = true}),
          split);
    LayerNormLinearOptions norm{.in_features = 32, .out_features = 32};
    const LayerNormLinear norm_plain(norm);
    norm.minimize_memory = true;
    check(norm_plain, LayerNormLinear(norm), run);
    TransformerLayerOptions layer{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
    layer.hidden_dropout = layer.attention_dropout = 0;
    const TransformerLayer layer_plain(layer);
    layer.minimize_memory = true;
    check(layer_plain, TransformerLayer(layer), run);
  }
}

// What a forward pass leaves behind: with minimize_memory no codes of the weight.
TEST(TeArguments, MinimizeMemoryKeepsNoCodesOfTheWeight) {
  const at::Tensor x = torch::randn({16, 256}, on_hpu()).requires_grad_(true);
  const auto kept = [&](bool minimize) {
    Linear m(LinearOptions{.in_features = 256, .out_features = 512, .minimize_memory = minimize});
    const fp8_autocast region(true, recipes::CurrentScaling{});
    m(x);  // buffers of the first call
    const std::int64_t before = runtime::memory_stats().InUse;
    const at::Tensor y = m(x);
    return runtime::memory_stats().InUse - before;
  };
  EXPECT_GE(kept(false) - kept(true), 256 * 512);
}

// One cast of each weight for all microbatches, counted: x and w (two products in the MLP), then x alone.
TEST(TeArguments, WeightsAreCastOncePerFirstMicrobatch) {
  torch::manual_seed(11);
  const at::Tensor x = torch::randn({4, 2, 32}, on_hpu()), none;
  for (const auto& recipe : {recipes::Recipe(DelayedScaling::habana()), recipes::Recipe(DelayedScaling::nvidia())}) {
    TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
    o.hidden_dropout = o.attention_dropout = 0;
    TransformerLayer layer(o);
    const auto casts = [&](std::optional<bool> first) {
      const fp8_autocast region(true, recipe);
      const at::Tensor y = layer(x, none, none, none, first);
      std::int64_t sum = 0;
      for (const auto& s : fp8_states(*layer)) sum += s.state->take_statistics().casts;
      return sum;
    };
    constexpr std::int64_t kProducts = 6;  // q, k, v, proj, fc1, fc2
    EXPECT_EQ(casts(std::nullopt), 2 * kProducts);
    EXPECT_EQ(casts(true), 2 * kProducts);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(casts(false), kProducts);
    EXPECT_EQ(casts(true), 2 * kProducts);
  }
}

// Taken where they ask for nothing, refused by name where they ask for what is not here.
TEST(TeArguments, OfTheFieldAreTakenOrRefusedByName) {
  const auto group = runtime::distributed::make_gloo_group({.rank = 0, .size = 1});
  const ParallelOptions alone{
      .tp_size = 1, .parallel_mode = "column", .tp_group = group, .get_rng_state_tracker = [] {}, .ub_name = "qkv"};
  Linear taken(LinearOptions{.in_features = 4, .out_features = 4, .parallel = alone});
  EXPECT_EQ(taken(torch::zeros({2, 4}, on_hpu())).sizes(), at::IntArrayRef({2, 4}));
  struct Two final : runtime::distributed::ProcessGroup {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    void all_reduce_max(float*, std::size_t) override {}
    void barrier() override {}
    void all_reduce(const at::Tensor&, runtime::distributed::ReduceOp) override {}
    void broadcast(const at::Tensor&, int) override {}
  };
  const auto with = [](auto&& change) {
    return [change] {
      LinearOptions o{.in_features = 4, .out_features = 4};
      change(o);
      Linear m(o);
    };
  };
  using O = LinearOptions;
  EXPECT_TRUE(throws_with({"[te::Linear] tp_group: found one of 2 ranks"},
                          with([](O& o) { o.parallel.tp_group = std::make_shared<Two>(); })));
  EXPECT_TRUE(throws_with({"[te::Linear] sequence_parallel: found true"},
                          with([](O& o) { o.parallel.sequence_parallel = true; })));
  EXPECT_TRUE(
      throws_with({"[te::Linear] ub_overlap_ag: found true"}, with([](O& o) { o.parallel.ub_overlap_ag = true; })));
  EXPECT_TRUE(
      throws_with({"[te::Linear] ub_bulk_wgrad: found true"}, with([](O& o) { o.parallel.ub_bulk_wgrad = true; })));
  EXPECT_TRUE(throws_with({"[te::Linear] fuse_wgrad_accumulation: found true", "main_grad"},
                          with([](O& o) { o.fuse_wgrad_accumulation = true; })));
  EXPECT_TRUE(
      throws_with({"[te::Linear] delay_wgrad_compute: found true"}, with([](O& o) { o.delay_wgrad_compute = true; })));
  EXPECT_TRUE(throws_with({"[te::LayerNormLinear] fuse_wgrad_accumulation: found true"}, [] {
    LayerNormLinear m(LayerNormLinearOptions{.in_features = 4, .out_features = 4, .fuse_wgrad_accumulation = true});
  }));
  EXPECT_TRUE(throws_with({"[te::LayerNormMLP] delay_wgrad_compute"}, [] {
    LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .delay_wgrad_compute = true});
  }));
  EXPECT_TRUE(throws_with({"[te::GroupedLinear] fuse_wgrad_accumulation"}, [] {
    GroupedLinear m(
        GroupedLinearOptions{.num_gemms = 1, .in_features = 4, .out_features = 4, .fuse_wgrad_accumulation = true});
  }));
  EXPECT_TRUE(throws_with({"[te::TransformerLayer] delay_wgrad_compute"}, [] {
    TransformerLayer m(TransformerLayerOptions{
        .hidden_size = 4, .ffn_hidden_size = 4, .num_attention_heads = 1, .delay_wgrad_compute = true});
  }));
  const at::Tensor x = torch::zeros({2, 4}, on_hpu());
  EXPECT_TRUE(throws_with({"[te::Linear] fp8_output: found true, allowed: false"},
                          [&] { taken(x, std::optional<bool>(), true); }));
  EXPECT_TRUE(
      throws_with({"[te::Linear] fp8_grad: found true"}, [&] { taken(x, std::optional<bool>(), false, true); }));
  LayerNormLinear norm(LayerNormLinearOptions{.in_features = 4, .out_features = 4});
  EXPECT_TRUE(
      throws_with({"[te::LayerNormLinear] fp8_output: found true"}, [&] { norm(x, std::optional<bool>(), true); }));
}

// Inputs that do not fit name the module, with fp8 on and off.
TEST(TeArguments, InputsThatDoNotFitNameTheModule) {
  const at::Tensor x = torch::zeros({2, 5}, on_hpu());
  for (const bool fp8 : {false, true}) {
    const fp8_autocast region(fp8, recipes::CurrentScaling{});
    Linear linear(LinearOptions{.in_features = 4, .out_features = 4, .name = "up"});
    LayerNormLinear norm(LayerNormLinearOptions{.in_features = 4, .out_features = 4, .name = "up"});
    LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .name = "up"});
    GroupedLinear grouped(GroupedLinearOptions{.num_gemms = 1, .in_features = 4, .out_features = 4, .name = "up"});
    const std::vector<std::string> words{"'up': input: found sizes [2, 5], allowed: [..., 4]"};
    EXPECT_TRUE(throws_with(words, [&] { linear(x); }));
    EXPECT_TRUE(throws_with(words, [&] { norm(x); }));
    EXPECT_TRUE(throws_with(words, [&] { mlp(x); }));
    EXPECT_TRUE(throws_with(words, [&] { grouped(x, std::vector<std::int64_t>{2}); }));
    EXPECT_TRUE(throws_with({"input: found none"}, [&] { linear(at::Tensor()); }));
    LayerNorm layer(4);
    EXPECT_TRUE(throws_with({"[te::LayerNorm] input: found sizes [2, 5], allowed: [..., 4]"}, [&] { layer(x); }));
    RMSNorm rms(4);
    EXPECT_TRUE(throws_with({"[te::RMSNorm] input: found sizes [2, 5]"}, [&] { rms(x); }));
  }
}

// With the flag the modules move what lies on the host, and its gradient finds the way back.
TEST(TeArguments, HostOperandsAreMovedWhereTheFlagSaysSo) {
  setenv("FP8_HPU_MOVE_HOST_OPERANDS", "1", 1);
  Linear m(LinearOptions{.in_features = 16, .out_features = 8});
  const at::Tensor x = torch::randn({4, 16}, at::requires_grad());
  const auto run = [&](const at::Tensor& input) {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    return m(input);
  };
  const at::Tensor y = run(x);
  EXPECT_TRUE(y.is_hpu());
  EXPECT_TRUE(same_bits(y.detach(), run(x.detach().to(at::kHPU)).detach()));
  y.sum().backward();
  EXPECT_TRUE(x.grad().is_cpu());
  EXPECT_GT(x.grad().abs().sum().item<float>(), 0.0f);
  DotProductAttention padding(
      DotProductAttentionOptions{.num_attention_heads = 2, .kv_channels = 4, .attn_mask_type = "padding"});
  const at::Tensor q = torch::randn({3, 2, 2, 4}, on_hpu()), mask = torch::zeros({2, 1, 1, 3}, at::kBool);
  EXPECT_TRUE(same_bits(padding(q, q, q, mask), padding(q, q, q, mask.to(at::kHPU))));
  unsetenv("FP8_HPU_MOVE_HOST_OPERANDS");
}

// Tensors of two devices are refused, and sizes whose products would overflow.
TEST(TeArguments, DevicesAndSizesAreChecked) {
  const at::Tensor x = torch::zeros({2, 4}), q = torch::zeros({3, 2, 2, 4}, on_hpu());
  Linear m(LinearOptions{.in_features = 4, .out_features = 4, .name = "up"});
  {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    EXPECT_TRUE(throws_with({"'up'", "operands on more than one device", "hpu:0 and cpu", "FP8_HPU_MOVE_HOST_OPERANDS"},
                            [&] { m(x); }));
  }
  DotProductAttention padding(
      DotProductAttentionOptions{.num_attention_heads = 2, .kv_channels = 4, .attn_mask_type = "padding"});
  EXPECT_TRUE(throws_with({"[te::DotProductAttention] operands on more than one device", "hpu:0 and cpu"},
                          [&] { padding(q, q, q, torch::zeros({2, 1, 1, 3}, at::kBool)); }));
  FusedAttention fused;
  EXPECT_TRUE(throws_with({"[te::FusedAttention]", "k: found none"}, [&] { fused(q, at::Tensor(), q); }));
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  EXPECT_TRUE(
      throws_with({"[te::LayerNormMLP] ffn_hidden_size: found 4611686018427387904, allowed: 1 to 1073741824"}, [] {
        LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = kHuge, .activation = "swiglu"});
      }));
  EXPECT_TRUE(throws_with({"[te::MultiheadAttention] kv_channels: found 4611686018427387904"}, [] {
    MultiheadAttention a(MultiheadAttentionOptions{.hidden_size = 4, .num_attention_heads = 8, .kv_channels = kHuge});
  }));
  EXPECT_TRUE(throws_with({"[te::MultiheadAttention] kv_channels: found -1"}, [] {
    MultiheadAttention a(MultiheadAttentionOptions{.hidden_size = 4, .num_attention_heads = 1, .kv_channels = -1});
  }));
  EXPECT_TRUE(throws_with({"[te::TransformerLayer] ffn_hidden_size: found 0"}, [] {
    TransformerLayer t(TransformerLayerOptions{.hidden_size = 4, .ffn_hidden_size = 0, .num_attention_heads = 1});
  }));
}

}  // namespace
}  // namespace fp8::te
