// SPDX-License-Identifier: Apache-2.0
// One decision for quantizing and for looking at what it would do: the same modules, the same reasons, experts one by
// one.
#include "fp8/quant/checkpoint/quantize_plan.h"

#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/quant/forms/ignore_list.h"
#include "quant/checkpoint/stacked_checkpoint.h"

namespace fp8::quant {
namespace {

using test::Folder;
using test::kExperts;
using test::kHidden;
using test::kInner;
using ::testing::ElementsAreArray;

constexpr const char* kMixture = "model.layers.0.mlp.";

/// Qwen3-MoE with its experts in two stacks and a head that readers make of the embedding.
test::Experts write_mixture(const std::filesystem::path& folder) {
  torch::manual_seed(5);
  const test::Experts experts(3, 64, 32);
  auto tensors = test::stacked_layer(experts, kMixture);
  const auto add = [&](const std::string& name, std::int64_t rows) {
    tensors.emplace_back(name + ".weight", torch::randn({rows, 32}).to(at::kBFloat16));
  };
  add("model.embed_tokens", 48);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add(std::string("model.layers.0.self_attn.") + name, 32);
  test::write_tensors(folder, tensors);
  test::write_text(folder / "config.json",
                   R"({"model_type": "qwen3_moe", "tie_word_embeddings": true, "num_experts": 3})");
  return experts;
}

std::vector<std::string> names_of(const std::vector<std::pair<std::string, std::string>>& modules) {
  std::vector<std::string> names;
  for (const auto& [name, scheme] : modules) names.push_back(name);
  return names;
}

TEST(CheckpointPlan, IsWhatQuantizeWritesAndInspectShows) {
  const test::TempDir dir;
  write_mixture(dir / "in");
  CheckpointOptions options;
  const CheckpointPlan planned(dir / "in", options);
  std::vector<std::string> modules, damaged;
  for (const auto& m : planned.plan.modules) modules.push_back(m.info.name);
  for (const auto& m : damage_of_checkpoint(dir / "in", options).modules) damaged.push_back(m.name);
  const auto written = names_of(quantize_checkpoint(dir / "in", dir / "out", options).quantized);
  ASSERT_EQ(modules.size(), 4u + 9u);
  EXPECT_THAT(written, ElementsAreArray(modules));
  EXPECT_THAT(damaged, ElementsAreArray(modules));
  EXPECT_THAT(planned.kept_linears(), Contains("lm_head"));
  EXPECT_THAT(planned.kept_linears(), Contains(std::string(kMixture) + "gate"));
  EXPECT_THAT(planned.attention(), Contains("model.layers.0.self_attn"));
  EXPECT_FALSE(planned.with_kv || planned.untied);
}

TEST(CheckpointPlan, AnExpertStandsInItsStack) {
  const test::TempDir dir;
  const auto experts = write_mixture(dir / "in");
  const CheckpointOptions options;
  const CheckpointPlan planned(dir / "in", options);
  const auto slice = planned.source_of(std::string(kMixture) + "experts.1.up_proj");
  EXPECT_EQ(slice.tensor, std::string(kMixture) + "experts.gate_up_proj");
  EXPECT_EQ(slice.expert, 1);
  EXPECT_EQ(planned.source_of("model.layers.0.self_attn.q_proj").tensor, "model.layers.0.self_attn.q_proj.weight");
  for (const auto& m : damage_of_checkpoint(dir / "in", options).modules) {
    if (m.name != std::string(kMixture) + "experts.2.down_proj") continue;
    EXPECT_EQ(m.weight.amax, experts.down[2].abs().max().item<float>());
    EXPECT_EQ(m.weight.count, 32 * 64);
    return;
  }
  FAIL() << "no damage of expert 2";
}

TEST(CheckpointPlan, TowersTablesAndRoutersAreNotDamaged) {
  const test::TempDir dir;
  test::NamedTensors tensors;
  const auto add = [&](const std::string& name, std::int64_t rows) {
    tensors.emplace_back(name + ".weight", torch::randn({rows, 32}).to(at::kBFloat16));
  };
  add("bert.embeddings.token_type_embeddings", 2);
  add("bert.encoder.layer.0.attention.self.query", 32);
  add("bert.encoder.layer.0.intermediate.dense", 64);
  test::write_tensors(dir / "in", tensors);
  test::write_text(dir / "in/config.json", R"({"model_type": "bert", "type_vocab_size": 2})");
  CheckpointOptions options;
  const auto damage = damage_of_checkpoint(dir / "in", options);
  ASSERT_EQ(damage.modules.size(), 2u);
  ASSERT_FALSE(damage.skipped.empty());
  EXPECT_EQ(damage.skipped[0].name, "bert.embeddings.token_type_embeddings");
  options.modules.keep = {"query"};
  EXPECT_EQ(damage_of_checkpoint(dir / "in", options).modules.size(), 1u);
}

TEST(CheckpointPlan, AnUnknownFamilyIsNoticedThere) {
  const test::TempDir dir;
  test::write_tensors(dir / "in", {{"net.3.up.weight", torch::randn({64, 32}).to(at::kBFloat16)}});
  test::write_text(dir / "in/config.json", R"({"model_type": "nobody_knows"})");
  EXPECT_THAT(damage_of_checkpoint(dir / "in", {}).warnings, Contains(HasSubstr("unknown family 'nobody_knows'")));
}

// Every way in which an expert's matrix stands in a stack, against torch's own indexing: any rows of it, every dtype,
// sizes that divide nothing.

/// Rows [first, first + rows) of a slice.
at::Tensor rows_of(const io::Checkpoint& checkpoint, const WeightSlice& slice, std::int64_t first, std::int64_t rows,
                   at::ScalarType dtype) {
  at::Tensor out = torch::empty({rows, slice.cols}, dtype);
  std::vector<std::uint8_t> scratch;
  read_rows(checkpoint, slice, first, rows, out.data_ptr(), scratch);
  return out;
}

struct Place {
  const char* tensor;
  std::int64_t first, row_stride, col_stride;
};

TEST(WeightSlice, RowsOfEveryLayoutAreThoseOfTheExpert) {
  torch::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [inner, hidden] : {std::pair<std::int64_t, std::int64_t>{37, 53}, {1, 1}, {64, 33}, {3, 130}}) {
      const std::int64_t I = inner, H = hidden, e = 2;
      const test::Experts experts(3, I, H, dtype);
      const test::TempDir dir;
      test::write_tensors(dir / "in", {{"upright", experts.gate_up()},
                                       {"turns", experts.gate_up(true)},
                                       {"swapped", test::axes_swapped(experts.gate_up())},
                                       {"swapped_turns", test::axes_swapped(experts.gate_up(true))},
                                       {"alone", experts.gate[0]}});
      const io::Checkpoint checkpoint(dir / "in");
      const std::int64_t start = 2 * e * I * H;
      const Place gates[] = {{"upright", start, H, 1},
                             {"turns", start, 2 * H, 1},
                             {"swapped", start, 1, 2 * I},
                             {"swapped_turns", start, 2, 2 * I}};
      const Place ups[] = {{"upright", start + I * H, H, 1},
                           {"turns", start + H, 2 * H, 1},
                           {"swapped", start + I, 1, 2 * I},
                           {"swapped_turns", start + 1, 2, 2 * I}};
      for (const auto* places : {gates, ups}) {
        const at::Tensor& want = places == gates ? experts.gate[e] : experts.up[e];
        for (int layout = 0; layout < 4; ++layout) {
          const Place& p = places[layout];
          const WeightSlice slice{p.tensor, p.first, I, H, p.row_stride, p.col_stride, e};
          EXPECT_TRUE(same_bits(rows_of(checkpoint, slice, 0, I, dtype), want)) << p.tensor;
          const std::int64_t middle = I / 3, count = I - middle - I / 4;
          EXPECT_TRUE(same_bits(rows_of(checkpoint, slice, middle, count, dtype),
                                want.slice(0, middle, middle + count).contiguous()))
              << p.tensor;
          EXPECT_EQ(rows_of(checkpoint, slice, I, 0, dtype).numel(), 0);
        }
      }
      EXPECT_TRUE(same_bits(rows_of(checkpoint, whole_weight(checkpoint.info("alone")), 0, I, dtype), experts.gate[0]));
    }
}

TEST(WeightSlice, NonFiniteValuesAreThoseOfOneExpert) {
  torch::manual_seed(8);
  const test::Experts experts(4, 20, 30, at::kBFloat16);
  at::Tensor stack = test::axes_swapped(experts.gate_up());
  stack[3].select(1, 25).slice(0, 4, 7).fill_(std::numeric_limits<float>::quiet_NaN());  // up's row 5
  stack[3][0][0] = std::numeric_limits<float>::infinity();                               // gate's
  stack[1][0][0] = std::numeric_limits<float>::infinity();
  const test::TempDir dir;
  test::write_tensors(dir / "in", {{"x.experts", stack}});
  const io::Checkpoint checkpoint(dir / "in");
  const auto up = [](std::int64_t e) { return WeightSlice{"x.experts", e * 1200 + 20, 20, 30, 1, 40, e}; };
  EXPECT_EQ(count_nonfinite(checkpoint, up(3)).nan, 3u);
  EXPECT_EQ(count_nonfinite(checkpoint, up(3)).inf, 0u);
  EXPECT_FALSE(count_nonfinite(checkpoint, up(1)).any());
  EXPECT_REFUSED(refuse_nonfinite(checkpoint, up(3)),
                 "x.experts, expert 3: expected finite weights, found NaN in 3 of 600 values");
}

// Stacked experts that are not converted: kept by the plan, for want of a row for their family or for one expert of
// them; and those that are refused by name.

TEST(StackedExperts, KeptOnesAreListedForReaders) {
  for (const std::string form : {"compressed-tensors", "fp8"}) {
    Folder f("mixtral");
    const test::Experts experts(kExperts, kInner, kHidden);
    f.add(test::stacked_layer(experts, "model.layers.0.mlp."));
    f.options.plan.experts = ExpertForm::keep;
    f.options.form = form;
    if (form == "fp8") f.options.plan.weights = Granularity::tensor;
    const auto report = f.run();
    EXPECT_EQ(report.quantized.size(), 1u);
    for (const char* stack : {"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"}) {
      EXPECT_THAT(reasons(report)[stack], HasSubstr("kept by")) << stack;
      EXPECT_TRUE(same_bits(f.out(stack), test::find(f.tensors, stack)));
    }
    const auto config = f.quantization();
    const auto ignored = config[form == "fp8" ? "ignored_layers" : "ignore"].get<std::vector<std::string>>();
    EXPECT_THAT(ignored, Contains("model.layers.0.mlp.experts"));
  }
}

TEST(StackedExperts, AFamilyWithoutARowIsKeptWithANotice) {
  for (const char* type : {"made_up_moe", "gpt_oss"}) {
    Folder f(type);
    f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), "model.layers.0.mlp.", true));
    const auto report = f.run();
    EXPECT_EQ(report.quantized.size(), 1u);
    EXPECT_EQ(reasons(report).count("model.layers.0.mlp.experts.down_proj"), 1u);
    EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains("model.layers.0.mlp.experts"));
    const bool noticed = std::any_of(report.warnings.begin(), report.warnings.end(), [](const std::string& w) {
      return w.find("model.layers.0.mlp.experts.") != std::string::npos;
    });
    EXPECT_EQ(noticed, std::string(type) == "made_up_moe");
  }
}

TEST(StackedExperts, AllOfALayerOrNone) {
  const std::string mlp = "model.layers.0.mlp.", other = "model.layers.1.mlp.";
  Folder f("qwen3_moe");
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), mlp));
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), other));
  f.options.plan.exclude = {"layers\\.0\\.mlp\\.experts\\.3\\.up_proj"};
  auto report = f.run();
  EXPECT_EQ(report.quantized.size(), 3 * kExperts + 1);
  EXPECT_THAT(reasons(report)[mlp + "experts.gate_up_proj"], HasSubstr("experts.3.up_proj is not converted: excluded"));
  EXPECT_THAT(f.names(), Contains(mlp + "experts.down_proj"));
  EXPECT_THAT(f.quantization()["ignore"].get<std::vector<std::string>>(), Contains(mlp + "experts"));
  EXPECT_EQ(reasons(report).count(mlp + "experts.0.gate_proj"), 0u);
  // vLLM asks for a mixture by its expert 0, below a prefix of its own.
  const auto is_ignored = [&](const std::string& name) {
    const IgnoreList list(compressed_tensors_form(), f.quantization()["ignore"].get<std::vector<std::string>>());
    return list.entry_for(name) != nullptr;
  };
  EXPECT_TRUE(is_ignored("language_model." + mlp + "experts.0.gate_proj"));
  EXPECT_FALSE(is_ignored("language_model." + other + "experts.0.gate_proj"));
  f.options.plan.exclude = {"experts"};
  f.options.overwrite = true;
  report = f.run();
  EXPECT_EQ(report.quantized.size(), 1u);
  EXPECT_THAT(reasons(report)[other + "experts.down_proj"], HasSubstr("excluded by"));
  f.options.plan.exclude = {};
  f.options.plan.keep = {{other + "experts.down_proj", "damages most"}};
  report = f.run();
  EXPECT_EQ(report.quantized.size(), 3 * kExperts + 1);
  EXPECT_EQ(reasons(report)[other + "experts.gate_up_proj"], "damages most");
}

TEST(StackedExperts, WhatIsNotANumberIsNamedWithItsExpert) {
  Folder f("llama4");
  f.add(test::stacked_layer(test::Experts(kExperts, kInner, kHidden), "model.layers.0.feed_forward.", true));
  at::Tensor stack = test::find(f.tensors, "model.layers.0.feed_forward.experts.gate_up_proj");
  stack[3][4][kInner + 1] = std::numeric_limits<float>::quiet_NaN();
  for (const auto weights : {Granularity::channel, Granularity::tensor, Granularity::block}) {
    f.options.plan.weights = weights;
    f.options.plan.block = {4, 4};
    EXPECT_REFUSED(f.run(),
                   "model.layers.0.feed_forward.experts.gate_up_proj, expert 3: expected finite weights, "
                   "found NaN in 1 of 240 values");
    EXPECT_FALSE(fs::exists(f.dir / "out"));
  }
  f.options.allow_nonfinite = true;
  f.options.plan.weights = Granularity::channel;
  const auto report = f.run();
  EXPECT_EQ(report.quantized.size(), 1u);
  EXPECT_THAT(reasons(report)["model.layers.0.feed_forward.experts.down_proj"], HasSubstr("NaN in 1 of 2400 values"));
}

TEST(StackedExperts, ShapesThatDoNotFitAreRefusedByName) {
  const std::string mlp = "model.layers.0.mlp.experts.";
  const auto refused = [&](const char* type, std::vector<std::int64_t> up, std::vector<std::int64_t> down,
                           const std::vector<std::string>& words) {
    Folder f(type);
    f.add({{mlp + "gate_up_proj", torch::zeros(up, at::kBFloat16)},
           {mlp + "down_proj", torch::zeros(down, at::kBFloat16)}});
    EXPECT_TRUE(throws_with(words, [&] { f.run(); })) << words[0];
    f.options.plan.experts = ExpertForm::keep;
    EXPECT_EQ(f.run().quantized.size(), 1u);
  };
  refused("qwen3_moe", {0, 24, 20}, {0, 20, 12}, {"gate_up_proj: shape [0, 24, 20]", "expected experts with values"});
  refused("qwen3_moe", {4, 25, 20}, {4, 20, 12}, {"gate_up_proj: shape [4, 25, 20]", "found 25 rows of both"});
  refused("qwen3_moe", {4, 24, 20}, {3, 20, 12}, {"down_proj: shape [3, 20, 12]", "as many experts", "4"});
  refused("qwen3_moe", {4, 20, 24}, {4, 12, 20},
          {"gate_up_proj: shape [4, 20, 24]", "expected [E, 2 I, H] beside [E, H, I]",
           "[4, 12, 20] in " + mlp + "down_proj"});
  refused("llama4", {4, 24, 20}, {4, 20, 12}, {"gate_up_proj", "expected [E, H, 2 I] beside [E, I, H]"});
  refused("llama4", {4, 20, 23}, {4, 12, 20}, {"gate_up_proj", "found 23 rows of both"});
  refused("qwen3_vl_moe", {4, 24, 20}, {4, 20, 13}, {"gate_up_proj"});
}

TEST(StackedExperts, AStackBesideTheSameExpertIsRefused) {
  Folder f("qwen3_moe");
  f.add(test::stacked_layer(test::Experts(2, kInner, kHidden), "model.layers.0.mlp."));
  f.add({{"model.layers.0.mlp.experts.1.up_proj.weight", torch::randn({kInner, kHidden})}});
  EXPECT_REFUSED(f.run(), "gate_up_proj", "experts.1.up_proj.weight holds too");
}

}  // namespace
}  // namespace fp8::quant
