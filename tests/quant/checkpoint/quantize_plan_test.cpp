// SPDX-License-Identifier: Apache-2.0
// One decision for quantizing and for looking at what it would do: the same modules, the same reasons, experts one by
// one.
#include "fp8/quant/checkpoint/quantize_plan.h"

#include <gmock/gmock.h>

#include "fp8/quant/damage/checkpoint_damage.h"
#include "quant/checkpoint/stacked_checkpoint.h"
#include "support/fp8_reference.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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
  for (const auto& m : planned.plan().modules) modules.push_back(m.info.name);
  for (const auto& m : damage_of_checkpoint(dir / "in", options).modules) damaged.push_back(m.name);
  const auto written = names_of(quantize_checkpoint(dir / "in", dir / "out", options).quantized);
  ASSERT_EQ(modules.size(), 4u + 9u);
  EXPECT_THAT(written, ElementsAreArray(modules));
  EXPECT_THAT(damaged, ElementsAreArray(modules));
  EXPECT_THAT(planned.kept_linears(), Contains("lm_head"));
  EXPECT_THAT(planned.kept_linears(), Contains(std::string(kMixture) + "gate"));
  EXPECT_THAT(planned.attention(), Contains("model.layers.0.self_attn"));
  EXPECT_FALSE(planned.with_kv() || planned.untied());
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

}  // namespace
}  // namespace fp8::quant
