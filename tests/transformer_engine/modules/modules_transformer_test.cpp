// SPDX-License-Identifier: Apache-2.0
// TransformerLayer: the composition of torch's functions bit for bit with fp8 off, near f32 in fp8, and the same bits
// with checkpointing and after a restart.
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

namespace F = torch::nn::functional;
namespace F = torch::nn::functional;

using recipes::DelayedScaling;

/// A parameter of a module by its name; undefined if it has none of it.
at::Tensor parameter(torch::nn::Module& m, const std::string& name) {
  const auto all = m.named_parameters();
  const auto* found = all.find(name);
  return found != nullptr ? *found : at::Tensor();
}

at::Tensor norm(torch::nn::Module& m, const std::string& weight, const std::string& bias, const at::Tensor& x) {
  const at::Tensor w = parameter(m, weight), b = parameter(m, bias);
  return b.defined() ? torch::layer_norm(x, w.sizes(), w, b, 1e-5) : torch::rms_norm(x, w.sizes(), w, 1e-5);
}

at::Tensor product(torch::nn::Module& m, const std::string& name, const at::Tensor& x) {
  return torch::linear(x, parameter(m, name + ".weight"), parameter(m, name + ".bias"));
}

/// The module's words in torch's functions, for "sbhd" and masks "causal", "no_mask". normal: gets the input behind its
/// norm.
at::Tensor reference_attention(te::MultiheadAttention& m, const at::Tensor& x, const at::Tensor& encoder = {},
                               at::Tensor* normal = nullptr) {
  const auto& o = m->options();
  const std::int64_t heads = o.num_attention_heads, groups = o.num_gqa_groups, depth = o.kv_channels,
                     each = heads / groups, s = x.size(0), b = x.size(1);
  const bool cross = encoder.defined();
  at::Tensor h = x;
  if (o.input_layernorm) {
    const std::string at = !o.fuse_qkv_params && !cross ? "layernorm."
                           : cross                      ? "layernorm_query.layer_norm_"
                                                        : "layernorm_qkv.layer_norm_";
    h = norm(*m, at + "weight", at + "bias", x);
  }
  if (normal != nullptr) *normal = h;
  at::Tensor q, k, v;
  if (o.fuse_qkv_params && !cross) {
    const at::Tensor all = product(*m, o.input_layernorm ? "layernorm_qkv" : "qkv", h);
    if (o.qkv_weight_interleaved) {
      const at::Tensor g = all.reshape({s, b, groups, each + 2, depth});
      q = g.slice(3, 0, each).reshape({s, b, heads, depth});
      k = g.select(3, each);
      v = g.select(3, each + 1);
    } else {
      q = all.slice(2, 0, heads * depth).reshape({s, b, heads, depth});
      k = all.slice(2, heads * depth, (heads + groups) * depth).reshape({s, b, groups, depth});
      v = all.slice(2, (heads + groups) * depth).reshape({s, b, groups, depth});
    }
  } else {
    const at::Tensor source = cross ? encoder : h;
    const std::int64_t keys = source.size(0);
    q = product(*m, cross && o.input_layernorm ? "layernorm_query" : "query_layer", h).unflatten(2, {heads, depth});
    if (o.fuse_qkv_params) {
      const at::Tensor both = product(*m, "key_value", source);
      const at::Tensor pairs = o.qkv_weight_interleaved ? both.reshape({keys, b, groups, 2, depth})
                                                        : both.reshape({keys, b, 2, groups, depth}).transpose(2, 3);
      k = pairs.select(3, 0);
      v = pairs.select(3, 1);
    } else {
      k = product(*m, "key_layer", source).unflatten(2, {groups, depth});
      v = product(*m, "value_layer", source).unflatten(2, {groups, depth});
    }
  }
  const auto t = [](const at::Tensor& a) { return a.permute({1, 2, 0, 3}); };
  const at::Tensor y = torch::scaled_dot_product_attention(t(q), t(k), t(v), std::nullopt, 0.0,
                                                           o.attn_mask_type == "causal", std::nullopt, groups != heads);
  return product(*m, "proj", y.permute({2, 0, 1, 3}).reshape({s, b, heads * depth}));
}

te::TransformerLayerOptions small_layer() {
  te::TransformerLayerOptions o{.hidden_size = 32, .ffn_hidden_size = 48, .num_attention_heads = 4};
  o.hidden_dropout = o.attention_dropout = 0;
  return o;
}

/// A layer's words in torch's functions, without dropout.
at::Tensor reference_layer(TransformerLayer& m, const at::Tensor& x, const at::Tensor& encoder = {}) {
  const auto& o = m->options();
  const auto mlp = [&](const at::Tensor& t, at::Tensor* normal) {
    *normal = norm(*m, "layernorm_mlp.layer_norm_weight", "layernorm_mlp.layer_norm_bias", t);
    const at::Tensor inner = torch::linear(*normal, m->layernorm_mlp->fc1_weight, m->layernorm_mlp->fc1_bias);
    return torch::linear(F::gelu(inner, F::GELUFuncOptions().approximate("tanh")), m->layernorm_mlp->fc2_weight,
                         m->layernorm_mlp->fc2_bias);
  };
  at::Tensor normal, mlp_normal;
  const at::Tensor attention = reference_attention(m->self_attention, x, {}, &normal);
  const bool post = o.apply_residual_connection_post_layernorm;
  if (o.parallel_attention_mlp) return x + (attention + mlp(x, &mlp_normal));
  at::Tensor h = (post && !o.output_layernorm ? normal : x) + attention;
  if (encoder.defined()) {
    const at::Tensor cross = reference_attention(m->inter_attention, h, encoder, &normal);
    h = (post ? normal : h) + cross;
  }
  const at::Tensor y = mlp(h, &mlp_normal);
  h = (post ? mlp_normal : h) + y;
  return o.output_layernorm ? norm(*m, "layernorm.weight", "layernorm.bias", h) : h;
}

TEST(TeTransformerLayer, OffIsTorchBitForBit) {
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu()),
                   encoder = torch::randn({9, 2, 32}, on_hpu());
  for (int variant = 0; variant < 7; ++variant) {
    TransformerLayerOptions o = small_layer();
    o.fuse_qkv_params = variant % 2 == 0;
    o.layer_type = variant == 1 || variant == 2 ? "decoder" : "encoder";
    o.apply_residual_connection_post_layernorm = variant == 2 || variant == 3 || variant == 6;
    o.output_layernorm = variant == 4 || variant == 6;
    o.parallel_attention_mlp = variant == 5;
    o.normalization = variant == 4 ? "RMSNorm" : "LayerNorm";
    TransformerLayer m(o);
    test::randomize(*m);
    const at::Tensor e = o.layer_type == "decoder" ? encoder : at::Tensor();
    EXPECT_TRUE(
        same_step(training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return m(t, at::Tensor(), e); }),
                  training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return reference_layer(m, t, e); })))
        << "variant " << variant;
  }
}

TEST(TeTransformerLayer, InFp8IsNearF32WithEveryRecipe) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({32, 2, 128}, on_hpu()), g = torch::randn({32, 2, 128}, on_hpu()),
                   encoder = torch::randn({24, 2, 128}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    const bool one_scale =
        std::holds_alternative<DelayedScaling>(recipe) || std::holds_alternative<recipes::CurrentScaling>(recipe);
    for (const bool decoder : {false, true}) {
      TransformerLayerOptions o{
          .hidden_size = 128, .ffn_hidden_size = 512, .num_attention_heads = 4, .num_gqa_groups = decoder ? 4 : 2};
      o.hidden_dropout = o.attention_dropout = 0;
      o.layer_type = decoder ? "decoder" : "encoder";
      o.fuse_qkv_params = decoder;
      o.fp8_dpa = one_scale;
      TransformerLayer m(o);
      test::randomize(*m);
      const at::Tensor e = decoder ? encoder : at::Tensor();
      const auto f = [&](const at::Tensor& t) { return m(t, at::Tensor(), e); };
      const auto exact = training_step(*m, x, g, std::nullopt, f);
      test::TrainingStep fp8;
      for (int i = 0; i < 3; ++i) fp8 = training_step(*m, x, g, recipe, f);
      EXPECT_TRUE(near_step(fp8, exact)) << recipes::describe(recipe) << decoder;
      EXPECT_FALSE(same_bits(fp8.y, exact.y));
    }
  }
}

TEST(TeTransformerLayer, CheckpointingChangesNoBit) {
  for (const auto& recipe :
       test::Recipes{DelayedScaling::nvidia(), DelayedScaling::habana(), recipes::CurrentScaling{}}) {
    TransformerLayerOptions o = small_layer();
    o.hidden_dropout = o.attention_dropout = 0.2;
    o.fp8_dpa = true;
    TransformerLayer plain(o), whole(o);
    o.checkpoint_mlp = true;
    TransformerLayer part(o);
    test::copy_parameters(*plain, *whole);
    test::copy_parameters(*plain, *part);
    for (int i = 0; i < 3; ++i) {
      torch::manual_seed(40 + i);
      const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()) * (3 - i), g = torch::randn({6, 2, 32}, on_hpu());
      const auto run = [&](TransformerLayer& m, bool checkpointed) {
        torch::manual_seed(50 + i);
        const std::function<at::Tensor(const at::Tensor&)> f = [&](const at::Tensor& t) { return m(t); };
        return training_step(*m, x, g, recipe,
                             [&](const at::Tensor& t) { return checkpointed ? checkpoint(f, t) : f(t); });
      };
      const auto expected = run(plain, false);
      EXPECT_TRUE(same_step(expected, run(whole, true))) << recipes::describe(recipe) << i;
      EXPECT_TRUE(same_step(expected, run(part, false))) << recipes::describe(recipe) << i;
    }
    const auto a = fp8_states(*plain), b = fp8_states(*whole);
    ASSERT_EQ(a.size(), 7u);  // q, k, v, attention, proj, fc1, fc2
    for (std::size_t s = 0; s < a.size(); ++s)
      EXPECT_TRUE((a[s].state->values().forward.amax_history == b[s].state->values().forward.amax_history).all())
          << a[s].name;
  }
}

TEST(TeTransformerLayer, GoesOnBitForBitAfterSaveAndLoad) {
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    TransformerLayerOptions o = small_layer();
    o.fuse_qkv_params = true;
    o.fp8_dpa = std::holds_alternative<DelayedScaling>(recipe);
    TransformerLayer m(o), other(o);
    const auto step = [&](TransformerLayer& l, double factor) {
      return training_step(*l, x * factor, g, recipe, [&](const at::Tensor& t) { return l(t); });
    };
    for (int i = 0; i < 2; ++i) step(m, 1);
    test::load(other, test::saved(m));
    EXPECT_TRUE(same_step(step(m, 3), step(other, 3))) << recipes::describe(recipe);
    EXPECT_TRUE(same_step(step(m, 1), step(other, 1))) << recipes::describe(recipe);
  }
}

TEST(TeTransformerLayer, HoldsFp8WeightsAndKeepsThemBetweenMicrobatches) {
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), none;
  {
    const quantized_model_init init({.recipe = recipes::CurrentScaling{}});
    TransformerLayer m(small_layer());
    for (const auto& p : m->named_parameters())
      EXPECT_EQ(c10::isFloat8Type(p.value().scalar_type()), p.value().dim() == 2) << p.key();
    const auto step = training_step(*m, x, x, recipes::CurrentScaling{}, [&](const at::Tensor& t) { return m(t); });
    for (const auto& [name, gradient] : step.gradients) EXPECT_TRUE(gradient.defined()) << name;
  }
  TransformerLayer m(small_layer());
  const fp8_autocast region(true, recipes::CurrentScaling{});
  const at::Tensor first = m(x, none, none, none, true);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& p : m->named_parameters())
      if (p.value().dim() == 2) p.value().mul_(2);
  }
  EXPECT_TRUE(same_bits(m(x, none, none, none, false), first));
  EXPECT_FALSE(same_bits(m(x), first));
}

TEST(TeTransformerLayer, TakesOneTokenOddSizesAndAutocast) {
  torch::manual_seed(7);
  TransformerLayerOptions o{.hidden_size = 33, .ffn_hidden_size = 71, .num_attention_heads = 3};
  o.hidden_dropout = o.attention_dropout = 0;
  for (const auto& recipe : test::training_recipes()) {
    TransformerLayer m(o);
    for (const auto& [length, batch] : {std::pair(1, 1), std::pair(7, 1), std::pair(1, 3)}) {
      const at::Tensor x = torch::randn({length, batch, 33}, on_hpu());
      const auto f = [&](const at::Tensor& t) { return m(t); };
      const auto exact = training_step(*m, x, x, std::nullopt, f);
      test::TrainingStep fp8;
      for (int i = 0; i < 3; ++i) fp8 = training_step(*m, x, x, recipe, f);
      EXPECT_LT(test::relative_error(fp8.y, exact.y), 0.05) << recipes::describe(recipe);
      EXPECT_LT(test::relative_error(fp8.dx, exact.dx), 0.05) << recipes::describe(recipe);
    }
    const runtime::autocast::AutocastGuard cast(at::kBFloat16);
    const auto mixed = training_step(*m, torch::randn({4, 2, 33}, on_hpu()), torch::randn({4, 2, 33}, on_hpu()), recipe,
                                     [&](const at::Tensor& t) { return m(t); });
    EXPECT_EQ(mixed.gradients.at("layernorm_mlp.fc1_weight").scalar_type(), at::kFloat);
    EXPECT_TRUE(mixed.y.isfinite().all().item<bool>());
  }
}

TEST(TeTransformerLayer, PaddingIsNotSeen) {
  TransformerLayerOptions o = small_layer();
  o.self_attn_mask_type = "padding";
  o.attn_input_format = "bshd";
  TransformerLayer m(o);
  at::Tensor mask = torch::zeros({2, 1, 1, 6}, on_hpu(at::kBool));
  mask.slice(-1, 4).fill_(true);
  const at::Tensor x = torch::randn({2, 6, 32}, on_hpu());
  at::Tensor other = x.clone();
  other.slice(1, 4).mul_(-3);
  EXPECT_TRUE(same_bits(m(x, mask).slice(1, 0, 4), m(other, mask).slice(1, 0, 4)));
}

// A model of a user: te modules beside torch's. Conversion takes torch's alone, and a restart finds every state once.
struct MixedModel : torch::nn::Module {
  MixedModel() {
    in = register_module("in", torch::nn::Linear(16, 32));
    layer = register_module("layer", TransformerLayer(small_layer()));
    out = register_module("out", Linear(32, 16));
  }
  at::Tensor forward(const at::Tensor& x) { return out(layer(in(x))); }
  torch::nn::Linear in{nullptr};
  TransformerLayer layer{nullptr};
  Linear out{nullptr};
};

TEST(TeTransformerLayer, IsNotConvertedAgain) {
  torch::manual_seed(9);
  const auto model = std::make_shared<MixedModel>(), other = std::make_shared<MixedModel>();
  for (const auto& m : {model, other}) {
    m->in->to(test::kHpu);
    const auto report = convert_for_training(*m);
    ASSERT_EQ(report.converted.size(), 1u);
    EXPECT_EQ(report.converted[0].name, "in");
    EXPECT_EQ(report.skipped.size(), 6u);  // q, k, v, proj, the MLP, out
    for (const auto& s : report.skipped) EXPECT_THAT(s.reason, HasSubstr("by itself")) << s.name;
  }
  const at::Tensor x = torch::randn({4, 2, 16}, on_hpu());
  const auto step = [&](const std::shared_ptr<MixedModel>& m, double factor) {
    return training_step(*m, x * factor, x, DelayedScaling::nvidia(),
                         [&](const at::Tensor& t) { return m->forward(t); });
  };
  for (int i = 0; i < 2; ++i) step(model, 1);
  test::copy_parameters(*model, *other);
  const auto report = set_extra_state(*other, get_extra_state(*model));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_TRUE(same_step(step(model, 3), step(other, 3)));
  const auto measured = export_amax(*model);
  ASSERT_NE(measured.find("out"), nullptr);
  EXPECT_GT(measured.find("out")->inputs[0][0], 0.0f);
}

TEST(TeTransformerLayer, Clones) {
  TransformerLayer m(small_layer());
  m->eval();
  const auto copy = std::dynamic_pointer_cast<TransformerLayerImpl>(m->clone());
  const at::Tensor x = torch::randn({4, 2, 32}, on_hpu());
  EXPECT_TRUE(same_bits(m(x), copy->forward(x)));
  test::within(torch::NoGradGuard(), [&] { m->layernorm_mlp->fc1_weight.zero_(); });
  EXPECT_FALSE(same_bits(m(x), copy->forward(x)));
  EXPECT_NE(m->layernorm_mlp->fp8_states()[0], copy->layernorm_mlp->fp8_states()[0]);
}

TEST(TeTransformerLayer, StandsInASequential) {
  TransformerLayerOptions o = small_layer();
  torch::nn::Sequential net(Linear(16, 32), LayerNorm(32), TransformerLayer(o),
                            LayerNormMLP(LayerNormMLPOptions{.hidden_size = 32, .ffn_hidden_size = 48}),
                            LayerNormLinear(LayerNormLinearOptions{.in_features = 32, .out_features = 8}));
  EXPECT_EQ(net->forward(torch::randn({4, 2, 16}, on_hpu())).sizes(), at::IntArrayRef({4, 2, 8}));
}

TEST(TeTransformerLayer, NamesWhatItRejects) {
  const auto make = [](auto&& change) {
    TransformerLayerOptions o = small_layer();
    change(o);
    TransformerLayer m(o);
  };
  using O = TransformerLayerOptions;
  EXPECT_REFUSED(make([](O& o) { o.layer_type = "both"; }), "[te::TransformerLayer] layer_type: found \"both\"",
                 "\"encoder\", \"decoder\"");
  EXPECT_REFUSED(make([](O& o) { o.self_attn_mask_type = "none"; }), "self_attn_mask_type: found \"none\"");
  EXPECT_REFUSED(make([](O& o) { o.attn_input_format = "bhsd"; }), "attn_input_format: found \"bhsd\"");
  EXPECT_REFUSED(make([](O& o) { o.parallel_attention_mlp = o.output_layernorm = true; }), "parallel_attention_mlp",
                 "encoder");
  EXPECT_REFUSED(make([](O& o) { o.hidden_dropout = 2; }), "hidden_dropout: found 2");
  EXPECT_REFUSED(make([](O& o) { o.num_attention_heads = 5; }), "num_attention_heads: found 5",
                 "divisors of hidden_size = 32");
  EXPECT_REFUSED(make([](O& o) { o.normalization = "none"; }), "normalization: found \"none\"");
  EXPECT_REFUSED(make([](O& o) { o.parallel.tp_size = 2; }), "tp_size: found 2");
  TransformerLayer m(small_layer());
  const at::Tensor x = torch::zeros({6, 2, 32}, on_hpu());
  EXPECT_REFUSED(m(x, at::Tensor(), x), "encoder_output: found one", "\"encoder\": none");
  EXPECT_REFUSED(m(x.slice(2, 0, 31)), "hidden_states: found sizes [6, 2, 31]", "[length, batch, 32]");
  MultiheadAttentionOptions o{.hidden_size = 32, .num_attention_heads = 4};
  o.attention_type = "own";
  EXPECT_REFUSED(MultiheadAttention a(o), "attention_type: found \"own\"", "\"self\", \"cross\"");
}

// MultiheadAttention: the composition of torch's functions bit for bit with fp8 off, in both formats, and its rotary
// embedding against the formula.

TEST(TeMultiheadAttention, OffIsTorchBitForBit) {
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu()), g = torch::randn({6, 2, 32}, on_hpu()),
                   encoder = torch::randn({9, 2, 32}, on_hpu());
  for (const bool cross : {false, true})
    for (const bool fused : {false, true})
      for (const bool interleaved : {false, true})
        for (const bool layernorm : {false, true})
          for (const std::int64_t groups : {4, 2}) {
            MultiheadAttentionOptions o{
                .hidden_size = 32, .num_attention_heads = 4, .kv_channels = 6, .num_gqa_groups = groups};
            o.attention_dropout = 0;
            o.attn_mask_type = cross ? "no_mask" : "causal";
            o.attention_type = cross ? "cross" : "self";
            o.input_layernorm = layernorm;
            o.normalization = groups == 2 ? "RMSNorm" : "LayerNorm";
            o.fuse_qkv_params = fused;
            o.qkv_weight_interleaved = interleaved;
            MultiheadAttention m(o);
            test::randomize(*m);
            const at::Tensor e = cross ? encoder : at::Tensor();
            EXPECT_TRUE(same_step(
                training_step(*m, x, g, std::nullopt, [&](const at::Tensor& t) { return m(t, at::Tensor(), e); }),
                training_step(*m, x, g, std::nullopt,
                              [&](const at::Tensor& t) { return reference_attention(m, t, e); })))
                << cross << fused << interleaved << layernorm << groups;
          }
}

TEST(TeMultiheadAttention, BatchFirstIsTheSameAttention) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 2, 32}, on_hpu());
  MultiheadAttentionOptions o{.hidden_size = 32, .num_attention_heads = 4};
  o.return_bias = o.input_layernorm = o.return_layernorm_output = true;
  MultiheadAttention a(o);
  o.qkv_format = "bshd";
  MultiheadAttention b(o);
  test::randomize(*a);
  test::copy_parameters(*a, *b);
  a->eval();
  b->eval();
  const ModuleOutputs ya = a->forward_all(x), yb = b->forward_all(x.transpose(0, 1).contiguous());
  EXPECT_TRUE(torch::allclose(ya.y, yb.y.transpose(0, 1), 1e-5, 1e-6));
  EXPECT_TRUE(ya.bias.is_same(a->proj->bias));
  EXPECT_TRUE(same_bits(ya.layernorm_output, a->layernorm(x)));
}

// Elements i and i + R / 2 of a head are turned by position * base^(-2 i / R), in q and k; the rest of the head stays.
// One head, scores from f64.
TEST(TeMultiheadAttention, TurnsQueriesAndKeys) {
  torch::manual_seed(20);
  constexpr int kLength = 5, kDepth = 8, kRotary = 6;
  for (const bool batch_first : {false, true}) {
    MultiheadAttentionOptions o{.hidden_size = kDepth, .num_attention_heads = 1};
    o.attention_dropout = 0;
    o.bias = false;
    o.qkv_format = batch_first ? "bshd" : "sbhd";
    o.init_method = [](at::Tensor w) { w.copy_(torch::eye(kDepth)); };  // q = k = v = x, y = attention
    o.output_layer_init_method = o.init_method;
    MultiheadAttention m(o);
    const at::Tensor x = torch::randn({kLength, kDepth}), angles = rotary_position_embedding(kRotary, 9, 100.0);
    const at::Tensor y =
        m(x.unsqueeze(batch_first ? 0 : 1).to(test::kHpu), at::Tensor(), at::Tensor(), std::optional<bool>(), angles);
    at::Tensor turned = x.to(at::kDouble).clone();
    for (int s = 0; s < kLength; ++s)
      for (int i = 0; i < kRotary / 2; ++i) {
        const double a = s * std::pow(100.0, -2.0 * i / kRotary), u = x[s][i].item<double>(),
                     v = x[s][i + kRotary / 2].item<double>();
        turned[s][i] = u * std::cos(a) - v * std::sin(a);
        turned[s][i + kRotary / 2] = v * std::cos(a) + u * std::sin(a);
      }
    const at::Tensor scores = torch::matmul(turned, turned.t()) / std::sqrt(8.0);
    const at::Tensor visible = torch::ones({kLength, kLength}, at::kBool).tril();
    const at::Tensor expected =
        torch::matmul(torch::softmax(scores.masked_fill(visible.logical_not(), -INFINITY), -1), x.to(at::kDouble));
    EXPECT_TRUE(torch::allclose(y.squeeze(batch_first ? 0 : 1).cpu().to(at::kDouble), expected, 1e-4, 1e-5));
    EXPECT_REFUSED(m(x.unsqueeze(batch_first ? 0 : 1).to(test::kHpu), at::Tensor(), at::Tensor(), std::optional<bool>(),
                     angles.slice(0, 0, 4)),
                   "rotary_pos_emb: found sizes [4, 1, 1, 6]", "[5 or more, 1, 1, an even number up to 8]");
  }
  TransformerLayer layer(small_layer());
  const at::Tensor x = torch::randn({4, 2, 32}, on_hpu()), none, angles = rotary_position_embedding(8, 4);
  EXPECT_FALSE(same_bits(layer(x), layer(x, none, none, none, std::optional<bool>(), angles)));
  EXPECT_REFUSED(rotary_position_embedding(7, 4), "dim: found 7");
}

}  // namespace
}  // namespace fp8::te
