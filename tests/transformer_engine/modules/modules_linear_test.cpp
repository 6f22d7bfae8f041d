// SPDX-License-Identifier: Apache-2.0
// LayerNorm, RMSNorm, LayerNormLinear, LayerNormMLP and GroupedLinear: with fp8 off they are torch's functions bit for
// bit; in fp8 near f32.
#include "fp8/runtime/autocast/autocast.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "support/operator_call.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

namespace F = torch::nn::functional;
namespace F = torch::nn::functional;

using recipes::DelayedScaling;
using test::copy_parameters;

constexpr const char* kActivations[] = {"gelu",  "geglu", "glu",    "qgelu", "qgeglu", "relu",
                                        "reglu", "srelu", "sreglu", "silu",  "swiglu"};

/// The eleven, written with torch's functions.
at::Tensor reference_activation(const std::string& name, const at::Tensor& x) {
  const auto f = [](const std::string& n, const at::Tensor& t) -> at::Tensor {
    if (n == "gelu") return F::gelu(t, F::GELUFuncOptions().approximate("tanh"));
    if (n == "qgelu") return t * torch::sigmoid(1.702 * t);
    if (n == "relu") return F::relu(t);
    if (n == "srelu") return torch::pow(F::relu(t), 2);
    if (n == "silu") return F::silu(t);
    return torch::sigmoid(t);
  };
  static const std::map<std::string, std::string> gated{{"geglu", "gelu"}, {"glu", "sigmoid"},  {"qgeglu", "qgelu"},
                                                        {"reglu", "relu"}, {"sreglu", "srelu"}, {"swiglu", "silu"}};
  const auto inner = gated.find(name);
  if (inner == gated.end()) return f(name, x);
  const std::int64_t half = x.size(-1) / 2;
  return f(inner->second, x.slice(-1, 0, half)) * x.slice(-1, half);
}

TEST(TeNorms, AreTorchsBitForBitAndTheFormula) {
  torch::manual_seed(1);
  const at::Tensor x0 = torch::randn({3, 5, 37}, on_hpu()) * 2 + 1, g = torch::randn({3, 5, 37}, on_hpu());
  for (const bool centered : {false, true}) {
    const NormOptions options{.normalized_shape = 37, .eps = 1e-3, .zero_centered_gamma = centered};
    LayerNorm layer(options);
    RMSNorm rms(options);
    EXPECT_EQ(layer->weight.sum().item<double>(), centered ? 0.0 : 37.0);
    test::randomize(*layer);
    {
      const torch::NoGradGuard no_grad;
      layer->weight.add_(torch::randn({37}, on_hpu()) * 0.2);
      rms->weight.copy_(layer->weight);
    }
    const auto step = [&](torch::nn::Module& m, auto&& f) { return training_step(m, x0, g, std::nullopt, f); };
    const auto gamma = [&](const at::Tensor& w) { return centered ? w + 1 : w; };
    EXPECT_TRUE(
        same_step(step(*layer, [&](const at::Tensor& x) { return layer(x); }), step(*layer, [&](const at::Tensor& x) {
                    return F::layer_norm(
                        x, F::LayerNormFuncOptions({37}).weight(gamma(layer->weight)).bias(layer->bias).eps(1e-3));
                  })));
    EXPECT_TRUE(same_step(step(*rms, [&](const at::Tensor& x) { return rms(x); }), step(*rms, [&](const at::Tensor& x) {
                            return torch::rms_norm(x, {37}, gamma(rms->weight), 1e-3);
                          })));
    const at::Tensor d = x0.cpu().to(at::kDouble), w = layer->weight.cpu().to(at::kDouble) + (centered ? 1 : 0);
    const at::Tensor mean = d.mean(-1, true), var = (d - mean).square().mean(-1, true);
    EXPECT_TRUE(torch::allclose(layer(x0).cpu().to(at::kDouble),
                                (d - mean) / (var + 1e-3).sqrt() * w + layer->bias.cpu(), 1e-6, 1e-5));
    EXPECT_TRUE(
        torch::allclose(rms(x0).cpu().to(at::kDouble), d / (d.square().mean(-1, true) + 1e-3).sqrt() * w, 1e-6, 1e-5));
  }
  const fp8_autocast region(true, recipes::CurrentScaling{});  // never in fp8
  LayerNorm layer(37);
  EXPECT_TRUE(
      same_bits(layer(x0), F::layer_norm(x0, F::LayerNormFuncOptions({37}).weight(layer->weight).bias(layer->bias))));
}

TEST(TeLayerNormLinear, OffIsTorchBitForBit) {
  torch::manual_seed(2);
  const at::Tensor x0 = torch::randn({3, 7, 24}, on_hpu()), g = torch::randn({3, 7, 40}, on_hpu());
  for (const char* normalization : {"LayerNorm", "RMSNorm"}) {
    LayerNormLinear m(LayerNormLinearOptions{.in_features = 24, .out_features = 40, .normalization = normalization});
    test::randomize(*m);
    EXPECT_EQ(m->layer_norm_bias.defined(), std::string(normalization) == "LayerNorm");
    const auto torchs = [&](const at::Tensor& x) {
      return F::linear(m->layer_norm_bias.defined()
                           ? torch::layer_norm(x, {24}, m->layer_norm_weight, m->layer_norm_bias, 1e-5)
                           : torch::rms_norm(x, {24}, m->layer_norm_weight, 1e-5),
                       m->weight, m->bias);
    };
    EXPECT_TRUE(same_step(training_step(*m, x0, g, std::nullopt, [&](const at::Tensor& x) { return m(x); }),
                          training_step(*m, x0, g, std::nullopt, torchs)));
  }
  LayerNormLinear m(LayerNormLinearOptions{
      .in_features = 24, .out_features = 40, .return_bias = true, .return_layernorm_output = true});
  const ModuleOutputs out = m->forward_all(x0);
  const at::Tensor normal = torch::layer_norm(x0, {24}, m->layer_norm_weight, m->layer_norm_bias, 1e-5);
  EXPECT_TRUE(same_bits(out.layernorm_output, normal));
  EXPECT_TRUE(same_bits(out.y, F::linear(normal, m->weight)));
  EXPECT_TRUE(out.bias.is_same(m->bias));
}

TEST(TeLayerNormMLP, OffIsTorchBitForBitForEveryActivation) {
  torch::manual_seed(3);
  const at::Tensor x0 = torch::randn({5, 24}, on_hpu()), g = torch::randn({5, 24}, on_hpu());
  for (const char* activation : kActivations) {
    LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 24, .ffn_hidden_size = 56, .activation = activation});
    test::randomize(*m);
    const bool gated = std::string(activation).find("glu") != std::string::npos;
    EXPECT_EQ(m->fc1_weight.sizes(), at::IntArrayRef({gated ? 112 : 56, 24}));
    const auto torchs = [&](const at::Tensor& x) {
      const at::Tensor inner = F::linear(torch::layer_norm(x, {24}, m->layer_norm_weight, m->layer_norm_bias, 1e-5),
                                         m->fc1_weight, m->fc1_bias);
      return F::linear(reference_activation(activation, inner), m->fc2_weight, m->fc2_bias);
    };
    const auto step = training_step(*m, x0, g, std::nullopt, [&](const at::Tensor& x) { return m(x); });
    EXPECT_TRUE(same_step(step, training_step(*m, x0, g, std::nullopt, torchs))) << activation;
  }
}

// A router's share per expert: 0 rows for one of them.
TEST(TeGroupedLinear, IsOneLinearPerShareOfTheRows) {
  torch::manual_seed(4);
  const at::Tensor x0 = torch::randn({2, 17, 32}, on_hpu()), g = torch::randn({2, 17, 48}, on_hpu());
  const std::vector<std::int64_t> splits{9, 0, 25};
  for (const bool fp8 : {false, true}) {
    const std::optional<recipes::Recipe> recipe =
        fp8 ? std::optional<recipes::Recipe>(DelayedScaling::nvidia()) : std::nullopt;
    GroupedLinear m(3, 32, 48);
    test::randomize(*m);
    std::vector<Linear> layers;
    for (std::size_t i = 0; i < 3; ++i) {
      layers.emplace_back(32, 48);
      const torch::NoGradGuard no_grad;
      layers[i]->weight.copy_(m->weights[i]);
      layers[i]->bias.copy_(m->biases[i]);
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second step has scales from the first
      const auto grouped = training_step(*m, x0, g, recipe, [&](const at::Tensor& x) { return m(x, splits); });
      torch::nn::ModuleList list;
      for (auto& l : layers) list->push_back(l);
      const auto apart = training_step(*list, x0, g, recipe, [&](const at::Tensor& x) {
        const auto rows = x.reshape({34, 32});
        return torch::cat(
                   {layers[0](rows.slice(0, 0, 9)), layers[1](rows.slice(0, 9, 9)), layers[2](rows.slice(0, 9, 34))})
            .reshape({2, 17, 48});
      });
      EXPECT_TRUE(same_bits(grouped.y, apart.y));
      EXPECT_TRUE(same_bits(grouped.dx, apart.dx));
      for (const int i : {0, 1, 2}) {
        EXPECT_TRUE(same_bits(grouped.gradients.at("weight" + std::to_string(i)),
                              apart.gradients.at(std::to_string(i) + ".weight")));
        EXPECT_TRUE(same_bits(grouped.gradients.at("bias" + std::to_string(i)),
                              apart.gradients.at(std::to_string(i) + ".bias")));
      }
    }
  }
  GroupedLinear m(3, 32, 48);
  EXPECT_REFUSED(m(x0, std::vector<std::int64_t>{4, 30}), "m_splits", "found 2 splits", "num_gemms = 3");
  EXPECT_REFUSED(m(x0, std::vector<std::int64_t>{4, 20, 9}), "m_splits", "a sum of 33", "the 34 rows");
  EXPECT_REFUSED(m(x0, std::vector<std::int64_t>{-1, 20, 15}), "m_splits", "found -1");
}

TEST(TeModules, InFp8AreNearF32WithEveryRecipe) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({32, 2, 128}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    const auto check = [&](torch::nn::Module& m, std::int64_t out, auto&& f) {
      test::randomize(m);
      const at::Tensor g = torch::randn({32, 2, out}, on_hpu());
      const auto exact = training_step(m, x, g, std::nullopt, f);
      test::TrainingStep fp8;
      for (int i = 0; i < 3; ++i) fp8 = training_step(m, x, g, recipe, f);
      EXPECT_TRUE(near_step(fp8, exact)) << recipes::describe(recipe) << " " << m.name();
      EXPECT_FALSE(same_bits(fp8.y, exact.y));
    };
    LayerNormLinear linear(LayerNormLinearOptions{
        .in_features = 128, .out_features = 384, .normalization = "RMSNorm", .zero_centered_gamma = true});
    check(*linear, 384, [&](const at::Tensor& t) { return linear(t); });
    LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 128, .ffn_hidden_size = 512, .activation = "swiglu"});
    check(*mlp, 128, [&](const at::Tensor& t) { return mlp(t); });
    GroupedLinear grouped(2, 128, 96);
    check(*grouped, 96, [&](const at::Tensor& t) { return grouped(t, std::vector<std::int64_t>{40, 24}); });
  }
}

TEST(TeModules, TakeAnySize) {
  torch::manual_seed(6);
  for (const auto& recipe : test::training_recipes()) {
    LayerNormMLP m(LayerNormMLPOptions{
        .hidden_size = 33, .ffn_hidden_size = 71, .normalization = "RMSNorm", .activation = "geglu"});
    for (const auto& [length, batch] : {std::pair(1, 1), std::pair(7, 1), std::pair(1, 3), std::pair(5, 3)}) {
      const at::Tensor x = torch::randn({length, batch, 33}, on_hpu()), g = torch::randn({length, batch, 33}, on_hpu());
      const auto exact = training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return m(t); });
      test::TrainingStep fp8;
      for (int i = 0; i < 3; ++i) fp8 = training_step(*m, x, g, recipe, [&](const at::Tensor& t) { return m(t); });
      EXPECT_LT(test::relative_error(fp8.y, exact.y), 0.125) << recipes::describe(recipe) << " " << x.sizes();
      EXPECT_LT(test::relative_error(fp8.dx, exact.dx), 0.25) << recipes::describe(recipe) << " " << x.sizes();
      EXPECT_LT(test::relative_error(fp8.gradients.at("fc1_weight"), exact.gradients.at("fc1_weight")), 0.25)
          << recipes::describe(recipe) << " " << x.sizes();
    }
    const auto none = training_step(*m, torch::empty({0, 33}, on_hpu()), torch::empty({0, 33}, on_hpu()), recipe,
                                    [&](const at::Tensor& t) { return m(t); });
    EXPECT_EQ(none.y.sizes(), at::IntArrayRef({0, 33}));
  }
}

// The option gives the same bits in every step, and the same state: amaxes are recorded once.
TEST(TeLayerNormMLP, CheckpointChangesNoBit) {
  for (const auto& recipe : test::training_recipes()) {
    LayerNormMLPOptions options{.hidden_size = 32, .ffn_hidden_size = 64, .return_layernorm_output = true};
    LayerNormMLP plain(options);
    options.checkpoint = true;
    LayerNormMLP checkpointed(options);
    copy_parameters(*plain, *checkpointed);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor x = torch::randn({5, 32}, on_hpu()) * (4 - i), g = torch::randn({5, 32}, on_hpu());
      const auto with = [](LayerNormMLP& m) {
        return [&m](const at::Tensor& t) {
          const ModuleOutputs out = m->forward_all(t);
          return out.y + out.layernorm_output;
        };
      };
      EXPECT_TRUE(same_step(training_step(*plain, x, g, recipe, with(plain)),
                            training_step(*checkpointed, x, g, recipe, with(checkpointed))))
          << recipes::describe(recipe) << " step " << i;
      for (const int s : {0, 1}) {
        const auto a = plain->fp8_states()[s]->values(), b = checkpointed->fp8_states()[s]->values();
        EXPECT_TRUE((a.forward.amax_history == b.forward.amax_history).all())
            << recipes::describe(recipe) << " step " << i;
        EXPECT_TRUE((a.forward.scale == b.forward.scale).all());
        EXPECT_TRUE((a.backward.amax_history == b.backward.amax_history).all());
        EXPECT_EQ(a.step, b.step);
      }
    }
  }
}

TEST(TeModules, GoOnBitForBitAfterSaveAndLoad) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({6, 32}, on_hpu()), g = torch::randn({6, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    const auto check = [&](auto m, auto other, auto&& f) {
      for (int i = 0; i < 2; ++i) training_step(*m, x, g, recipe, f(m));
      test::load(other, test::saved(m));
      EXPECT_TRUE(
          same_step(training_step(*m, x * 3, g, recipe, f(m)), training_step(*other, x * 3, g, recipe, f(other))))
          << recipes::describe(recipe) << m->name();
    };
    const auto plain = [](auto m) { return [m](const at::Tensor& t) mutable { return m(t); }; };
    const LayerNormLinearOptions linear{.in_features = 32, .out_features = 32};
    check(LayerNormLinear(linear), LayerNormLinear(linear), plain);
    const LayerNormMLPOptions mlp{.hidden_size = 32, .ffn_hidden_size = 48};
    check(LayerNormMLP(mlp), LayerNormMLP(mlp), plain);
    check(GroupedLinear(2, 32, 32), GroupedLinear(2, 32, 32),
          [](auto m) { return [m](const at::Tensor& t) mutable { return m(t, std::vector<std::int64_t>{2, 4}); }; });
  }
}

// true: weights are cast and kept; false: the kept ones are used, even if the parameter has changed since.
TEST(TeModules, KeepWeightsBetweenMicrobatches) {
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({6, 32}, on_hpu());
  LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48});
  LayerNormLinear linear(LayerNormLinearOptions{.in_features = 32, .out_features = 32});
  GroupedLinear grouped(2, 32, 32);
  const std::vector<std::int64_t> splits{3, 3};
  const auto run = [&](std::optional<bool> first) {
    const fp8_autocast region(true, recipes::CurrentScaling{});
    return std::vector<at::Tensor>{mlp(x, first), linear(x, first), grouped(x, splits, first)};
  };
  const auto uncached = run(std::nullopt), first = run(true);
  {
    const torch::NoGradGuard no_grad;
    mlp->fc1_weight.mul_(2);
    linear->weight.mul_(2);
    grouped->weights[1].mul_(2);
  }
  const auto second = run(false), fresh = run(std::nullopt);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(uncached[i], first[i])) << i;
    EXPECT_TRUE(same_bits(first[i], second[i])) << i;
    EXPECT_FALSE(same_bits(first[i], fresh[i])) << i;
  }
}

TEST(TeModules, HoldFp8WeightsUnderQuantizedModelInit) {
  torch::manual_seed(10);
  const at::Tensor x = torch::randn({6, 32}, on_hpu()), g = torch::randn({6, 32}, on_hpu());
  const quantized_model_init init({.recipe = recipes::CurrentScaling{}});
  LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48});
  LayerNormLinear linear(LayerNormLinearOptions{.in_features = 32, .out_features = 32});
  GroupedLinear grouped(2, 32, 32);
  for (const at::Tensor& w : {m->fc1_weight, m->fc2_weight, linear->weight, grouped->weights[0], grouped->weights[1]}) {
    EXPECT_EQ(w.scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_NE(fp8_weight(w), nullptr);
  }
  EXPECT_EQ(m->layer_norm_weight.scalar_type(), at::kFloat);
  const auto f = [&](const at::Tensor& t) { return m(t) + linear(t) + grouped(t, std::vector<std::int64_t>{1, 5}); };
  for (const std::optional<recipes::Recipe>& recipe :
       {std::optional<recipes::Recipe>(), std::optional<recipes::Recipe>(recipes::CurrentScaling{})}) {
    training_step(*linear, x, g, recipe, f);
    EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
    EXPECT_GT(grouped->weights[1].grad().abs().max().item<float>(), 0.0f);
    EXPECT_GT(m->fc1_weight.grad().abs().max().item<float>(), 0.0f);
  }
}

TEST(TeModules, NameWhatTheyReject) {
  EXPECT_REFUSED(LayerNorm m(0), "[te::LayerNorm] normalized_shape", "found 0");
  EXPECT_REFUSED(RMSNorm m(NormOptions{.normalized_shape = 4, .eps = -1}), "[te::RMSNorm] eps", "-1");
  EXPECT_REFUSED(
      LayerNormLinear m(LayerNormLinearOptions{.in_features = 4, .out_features = 4, .normalization = "BatchNorm"}),
      "[te::LayerNormLinear] normalization", "BatchNorm", "\"LayerNorm\", \"RMSNorm\"");
  EXPECT_REFUSED(LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .activation = "tanh"}),
                 "[te::LayerNormMLP] activation", "found \"tanh\"", "\"gelu\"", "\"sreglu\"");
  EXPECT_REFUSED(LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .params_dtype = at::kLong}),
                 "[te::LayerNormMLP] params_dtype", "Long");
  EXPECT_REFUSED(GroupedLinear m(0, 4, 4), "[te::GroupedLinear] num_gemms", "found 0");
  EXPECT_REFUSED(
      LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .parallel = {.tp_size = 4}}),
      "[te::LayerNormMLP] tp_size: found 4");
}

// bf16 parameters, and f32 ones in an autocast region: results in bf16, gradients in the parameters' dtype.
TEST(TeModules, ComputeInTheRegionsDtype) {
  torch::manual_seed(11);
  for (const bool fp8 : {false, true}) {
    const fp8_autocast region(fp8, recipes::CurrentScaling{});
    LayerNormMLP half(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48, .params_dtype = at::kBFloat16});
    half(torch::randn({4, 32}, on_hpu(at::kBFloat16))).sum().backward();
    EXPECT_EQ(half->fc1_weight.grad().scalar_type(), at::kBFloat16);
    const runtime::autocast::AutocastGuard cast(at::kBFloat16);
    LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48});
    const at::Tensor y = m(torch::randn({4, 32}, on_hpu()));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(m->fc1_weight.grad().scalar_type(), at::kFloat);
  }
}

// The operators that modules in Python are made of.

/// With autocast as modules have it.
TEST(ModuleOperators, HaveTheBitsOfModules) {
  const at::Tensor q = at::randn({6, 2, 4, 8}, on_hpu()), k = at::randn({6, 2, 2, 8}, on_hpu());
  const at::Tensor x = at::randn({6, 16}, on_hpu()), w = at::randn({16}, on_hpu()).to(at::kBFloat16);
  te::DotProductAttention attention(
      te::DotProductAttentionOptions{.num_attention_heads = 4, .kv_channels = 8, .num_gqa_groups = 2});
  const at::Tensor angles = te::rotary_position_embedding(8, 6);
  for (const bool autocast : {false, true}) {
    const runtime::autocast::AutocastGuard region(at::kBFloat16, autocast);
    const auto attend =
        test::call_fp8("dot_product_attention", {q, k, k, c10::IValue(), 4, 2, 8, "sbhd", "causal"}).toTensor();
    EXPECT_TRUE(same_bits(attend, attention->forward(q, k, k))) << autocast;
    EXPECT_TRUE(same_bits(test::call_fp8("activated", {x, "swiglu"}).toTensor(), te::activate("swiglu", x)));
    EXPECT_TRUE(same_bits(test::call_fp8("normalized", {x, w, c10::IValue(), 1e-5, true}).toTensor(),
                          te::normalize(te::Normalization::RMSNorm, x, w, {}, 1e-5, true)));
    EXPECT_TRUE(same_bits(test::call_fp8("rotated", {q, angles, "sbhd"}).toTensor(), te::rotated(q, angles)));
  }
  EXPECT_TRUE(same_bits(test::call_fp8("rotary_angles", {8, 6, 10000.0, at::Device(at::kHPU, 0)}).toTensor(), angles));
  EXPECT_REFUSED(test::call_fp8("dot_product_attention", {q, k, k, c10::IValue(), 4, 2, 8, "sbhd", "triangle"}),
                 "attn_mask_type", "triangle");
  EXPECT_REFUSED(test::call_fp8("rotated", {q, angles.narrow(0, 0, 5), "sbhd"}), "rotary_pos_emb", "6 or more");
}

/// Which rows of weights are heads of q, k and v: each value is the number of its row of 8.
TEST(ModuleOperators, HeadsOfEachLayout) {
  using Rows = std::vector<std::vector<float>>;
  const auto rows_of = [](std::vector<std::int64_t> products, bool interleaved) {
    std::vector<at::Tensor> projected;
    for (const std::int64_t heads : products)
      projected.push_back(at::arange(heads, on_hpu()).repeat_interleave(8).expand({3, heads * 8}));
    Rows rows;
    for (const at::Tensor& part : test::call_fp8("heads", {projected, 4, 2, 8, interleaved}).toTensorVector()) {
      const at::Tensor first = part.select(0, 0).select(-1, 0).to(at::kCPU, at::kFloat).contiguous();
      EXPECT_EQ(part.sizes(), at::IntArrayRef({3, first.numel(), 8}));
      rows.emplace_back(first.const_data_ptr<float>(), first.const_data_ptr<float>() + first.numel());
    }
    return rows;
  };
  EXPECT_EQ(rows_of({8}, true), (Rows{{0, 1, 4, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(rows_of({8}, false), (Rows{{0, 1, 2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(rows_of({4, 4}, true), (Rows{{0, 1, 2, 3}, {0, 2}, {1, 3}}));
  EXPECT_EQ(rows_of({4, 4}, false), (Rows{{0, 1, 2, 3}, {0, 1}, {2, 3}}));
  EXPECT_EQ(rows_of({4, 2, 2}, true), (Rows{{0, 1, 2, 3}, {0, 1}, {0, 1}}));
  EXPECT_REFUSED(rows_of({4, 2, 2, 2}, true), "projected", "1 to 3");
  EXPECT_REFUSED(test::call_fp8("normalized", {at::ones({2, 7}), at::ones({8}), c10::IValue(), 1e-5}), "input", "8");
}

/// Packed sequences in a window, and attention in fp8 with a state of the caller's.
TEST(ModuleOperators, HaveTheBitsOfAttentions) {
  torch::manual_seed(6);
  const at::Tensor q = at::randn({9, 4, 8}, on_hpu()), k = at::randn({9, 2, 8}, on_hpu()),
                   sums = at::tensor({0, 4, 9}, at::kInt);
  te::DotProductAttention packed(te::DotProductAttentionOptions{.num_attention_heads = 4,
                                                                .kv_channels = 8,
                                                                .num_gqa_groups = 2,
                                                                .qkv_format = "thd",
                                                                .attn_mask_type = "padding_causal",
                                                                .window_size = {2, 0}});
  const std::vector<std::int64_t> window{2, 0};
  const c10::IValue none;
  const auto found = test::call_fp8("dot_product_attention",
                                    {q, k, k, none, 4, 2, 8, "thd", "padding_causal", 0.0, none, window, sums});
  EXPECT_TRUE(same_bits(found.toTensor(), packed->forward(q, k, k, {}, {.cu_seqlens_q = sums})));

  te::FusedAttention fused(te::FusedAttentionOptions{.enable_recompute = true, .name = "a"});
  const auto state = c10::make_intrusive<te::State>("a", "", false, true);
  const at::Tensor heads = at::randn({2, 4, 6, 8}, on_hpu());
  for (int step = 0; step < 3; ++step) {
    const auto run = [&](bool as_operator) {
      const at::Tensor x = heads.clone().requires_grad_(true);
      at::Tensor y;
      {
        const te::fp8_autocast region(true, recipes::DelayedScaling::nvidia());
        y = as_operator ? test::call_fp8("fused_attention", {x, x, x, none, true, "none", 0.0, none, true, true, state})
                              .toTensor()
                        : fused->forward(x, x, x, {}, true);
      }
      y.square().sum().backward();
      return std::pair(y.detach(), x.grad());
    };
    const auto [y, dx] = run(true);
    const auto [module_y, module_dx] = run(false);
    EXPECT_TRUE(same_bits(y, module_y)) << step;
    EXPECT_TRUE(same_bits(dx, module_dx)) << step;
  }
  EXPECT_EQ(fused->fp8_states()[0]->step(), 3);
  EXPECT_REFUSED(state->linear(q, k, {}), "'a'", "one of an attention");
}

}  // namespace
}  // namespace fp8::te
