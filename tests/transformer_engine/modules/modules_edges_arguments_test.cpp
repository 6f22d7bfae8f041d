// SPDX-License-Identifier: Apache-2.0
// The arguments of the field that change where values are kept or how parameters are cut, which change no bit of the
// results; and arguments, inputs and sizes that are refused by name.

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "transformer_engine/modules/module_checks.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling;

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
           {std::optional<recipes::Recipe>(), std::optional<recipes::Recipe>(recipe)})
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
    Linear l(LinearOptions{.in_features = 4, .out_features = 8, .parameters_split = s});
  };
  EXPECT_REFUSED(make({{"a", 4}, {"b", 2}}), "[te::Linear] parameters_split: found 6 rows in all", "out_features = 8");
  EXPECT_REFUSED(make({{"a", 0}, {"b", 8}}), "parameters_split: found {\"a\", 0}", "1 to 8 rows");
  const quantized_model_init init({.recipe = recipes::CurrentScaling{}});
  EXPECT_REFUSED(make({{"a", 4}, {"b", 4}}), "parameters_split: found 2 parts", "quantized_model_init: none");
}

TEST(TeArguments, AWeightMayComeFromOutside) {
  torch::manual_seed(9);
  torch::nn::Linear owner(8, 16);
  owner->to(test::kHpu);
  Linear m(LinearOptions{.in_features = 8, .out_features = 16, .name = "tied", .skip_weight_param_allocation = true});
  const at::Tensor x = torch::randn({3, 8}, on_hpu());
  EXPECT_TRUE(m->parameters().empty());
  EXPECT_REFUSED(m(x), "[te::Linear] 'tied': weight: found none", "set_weight()");
  EXPECT_REFUSED(m->set_weight(owner->weight.t(), owner->bias), "weight: found sizes [8, 16]", "[16, 8]");
  EXPECT_REFUSED(m->set_weight(owner->weight), "bias: found none", "[16]");
  m->set_weight(owner->weight, owner->bias);
  EXPECT_TRUE(same_bits(m(x), owner(x)));
  EXPECT_TRUE(m->named_parameters()["weight"].is_same(owner->weight));
  m(x).sum().backward();
  EXPECT_TRUE(owner->weight.grad().defined());
  const auto copy = std::dynamic_pointer_cast<LinearImpl>(m->clone());
  EXPECT_TRUE(same_bits(copy->forward(x), owner(x)));
  EXPECT_FALSE(copy->weight.is_same(owner->weight));
  Linear own(8, 16);
  EXPECT_REFUSED(own->set_weight(owner->weight, owner->bias), "set_weight()", "skip_weight_param_allocation");
}

TEST(TeArguments, MinimizeMemoryAndSaveOriginalInputChangeNoBit) {
  torch::manual_seed(10);
  const at::Tensor x = torch::randn({5, 2, 32}, on_hpu()), g = torch::randn({5, 2, 32}, on_hpu());
  for (const auto& recipe : test::training_recipes()) {
    const auto check = [&](auto plain, auto other, auto&& run) {
      test::copy_parameters(*plain, *other);
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(same_step(
            training_step(*plain, x * (3 - i), g, recipe, [&](const at::Tensor& t) { return run(plain, t); }),
            training_step(*other, x * (3 - i), g, recipe, [&](const at::Tensor& t) { return run(other, t); })))
            << recipes::describe(recipe) << plain->name() << i;
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
  const auto flag = [] { return io::RuntimeFlags::from_env()["PT_HPU_FP8_MINIMIZE_MEMORY"]; };
  io::override_flag("PT_HPU_FP8_MINIMIZE_MEMORY", std::nullopt);
  const auto without = kept(false);
  EXPECT_EQ(flag().source_text(), "default");
  EXPECT_GE(without - kept(true), 256 * 512);
  EXPECT_EQ(flag().source_text(), "call: minimize_memory");
  EXPECT_EQ(flag().value, "1");
}

// One cast of each weight for all microbatches, counted: x and w (two products in the MLP), then x alone.
TEST(TeArguments, WeightsAreCastOncePerFirstMicrobatch) {
  torch::manual_seed(11);
  const at::Tensor x = torch::randn({4, 2, 32}, on_hpu()), none;
  for (const auto& recipe : test::Recipes{DelayedScaling::habana(), DelayedScaling::nvidia()}) {
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
    LinearOptions o{.in_features = 4, .out_features = 4};
    change(o);
    Linear m(o);
  };
  using O = LinearOptions;
  EXPECT_REFUSED(with([](O& o) { o.parallel.tp_group = std::make_shared<Two>(); }),
                 "[te::Linear] tp_group: found one of 2 ranks");
  EXPECT_REFUSED(with([](O& o) { o.parallel.sequence_parallel = true; }), "[te::Linear] sequence_parallel: found true");
  EXPECT_REFUSED(with([](O& o) { o.parallel.ub_overlap_ag = true; }), "[te::Linear] ub_overlap_ag: found true");
  EXPECT_REFUSED(with([](O& o) { o.parallel.ub_bulk_wgrad = true; }), "[te::Linear] ub_bulk_wgrad: found true");
  EXPECT_REFUSED(with([](O& o) { o.fuse_wgrad_accumulation = true; }),
                 "[te::Linear] fuse_wgrad_accumulation: found true", "main_grad");
  EXPECT_REFUSED(with([](O& o) { o.delay_wgrad_compute = true; }), "[te::Linear] delay_wgrad_compute: found true");
  EXPECT_REFUSED(
      LayerNormLinear m(LayerNormLinearOptions{.in_features = 4, .out_features = 4, .fuse_wgrad_accumulation = true}),
      "[te::LayerNormLinear] fuse_wgrad_accumulation: found true");
  EXPECT_REFUSED(
      LayerNormMLP m(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 4, .delay_wgrad_compute = true}),
      "[te::LayerNormMLP] delay_wgrad_compute");
  EXPECT_REFUSED(GroupedLinear m(GroupedLinearOptions{
                     .num_gemms = 1, .in_features = 4, .out_features = 4, .fuse_wgrad_accumulation = true}),
                 "[te::GroupedLinear] fuse_wgrad_accumulation");
  EXPECT_REFUSED(TransformerLayer m(TransformerLayerOptions{
                     .hidden_size = 4, .ffn_hidden_size = 4, .num_attention_heads = 1, .delay_wgrad_compute = true}),
                 "[te::TransformerLayer] delay_wgrad_compute");
  const at::Tensor x = torch::zeros({2, 4}, on_hpu());
  EXPECT_REFUSED(taken(x, std::optional<bool>(), true), "[te::Linear] fp8_output: found true, allowed: false");
  EXPECT_REFUSED(taken(x, std::optional<bool>(), false, true), "[te::Linear] fp8_grad: found true");
  LayerNormLinear norm(LayerNormLinearOptions{.in_features = 4, .out_features = 4});
  EXPECT_REFUSED(norm(x, std::optional<bool>(), true), "[te::LayerNormLinear] fp8_output: found true");
}

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
    EXPECT_REFUSED(linear(at::Tensor()), "input: found none");
    LayerNorm layer(4);
    EXPECT_REFUSED(layer(x), "[te::LayerNorm] input: found sizes [2, 5], allowed: [..., 4]");
    RMSNorm rms(4);
    EXPECT_REFUSED(rms(x), "[te::RMSNorm] input: found sizes [2, 5]");
  }
}

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

TEST(TeArguments, DevicesAndSizesAreChecked) {
  const at::Tensor x = torch::zeros({2, 4}), q = torch::zeros({3, 2, 2, 4}, on_hpu());
  Linear m(LinearOptions{.in_features = 4, .out_features = 4, .name = "up"});
  test::within(fp8_autocast(true, recipes::CurrentScaling{}), [&] {
    EXPECT_REFUSED(m(x), "'up'", "operands on more than one device", "hpu:0 and cpu", "FP8_HPU_MOVE_HOST_OPERANDS");
  });
  DotProductAttention padding(
      DotProductAttentionOptions{.num_attention_heads = 2, .kv_channels = 4, .attn_mask_type = "padding"});
  EXPECT_REFUSED(padding(q, q, q, torch::zeros({2, 1, 1, 3}, at::kBool)),
                 "[te::DotProductAttention] operands on more than one device", "hpu:0 and cpu");
  FusedAttention fused;
  EXPECT_REFUSED(fused(q, at::Tensor(), q), "[te::FusedAttention]", "k: found none");
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  EXPECT_REFUSED(
      LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = kHuge, .activation = "swiglu"}),
      "[te::LayerNormMLP] ffn_hidden_size: found 4611686018427387904, allowed: 1 to 1073741824");
  EXPECT_REFUSED(
      MultiheadAttention a(MultiheadAttentionOptions{.hidden_size = 4, .num_attention_heads = 8, .kv_channels = kHuge}),
      "[te::MultiheadAttention] kv_channels: found 4611686018427387904");
  EXPECT_REFUSED(
      MultiheadAttention a(MultiheadAttentionOptions{.hidden_size = 4, .num_attention_heads = 1, .kv_channels = -1}),
      "[te::MultiheadAttention] kv_channels: found -1");
  EXPECT_REFUSED(
      TransformerLayer t(TransformerLayerOptions{.hidden_size = 4, .ffn_hidden_size = 0, .num_attention_heads = 1}),
      "[te::TransformerLayer] ffn_hidden_size: found 0");
}

}  // namespace
}  // namespace fp8::te
