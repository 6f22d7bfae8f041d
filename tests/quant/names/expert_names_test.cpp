// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fp8/quant/names/expert_weights.h"

namespace fp8::quant {
namespace {

const std::string kExperts = "model.layers.3.block_sparse_moe.experts.";

TEST(ExpertNames, OfACheckpointHaveNamesInMemory) {
  for (const auto& [weight, list] : {std::pair("w1", "w13_list"), {"w3", "w13_list"}, {"w2", "w2_list"}}) {
    const auto expert = expert_in_memory(kExperts + "11." + weight);
    ASSERT_TRUE(expert.has_value()) << weight;
    EXPECT_EQ(expert->mixture, kExperts + "moe_op");
    EXPECT_EQ(expert->name, kExperts + "moe_op." + list + ".11");
  }
  for (const char* other : {"11", "11.w4", "x.w1", ".w1", "11.w1.weight", "moe_op.w2_list.11"})
    EXPECT_FALSE(expert_in_memory(kExperts + other).has_value()) << other;
  EXPECT_FALSE(expert_in_memory("model.layers.3.mlp.experts.11.w1").has_value());
}

TEST(ExpertNames, InMemorySayWhichExpertTheyMean) {
  const auto up = expert_weight("moe_op.w13_list.0"), down = expert_weight(kExperts + "moe_op.w2_list.127");
  ASSERT_TRUE(up.has_value() && down.has_value());
  EXPECT_EQ(up->mixture, "moe_op");
  EXPECT_EQ(up->expert, 0u);
  EXPECT_FALSE(up->down);
  EXPECT_EQ(down->mixture, kExperts + "moe_op");
  EXPECT_EQ(down->expert, 127u);
  EXPECT_TRUE(down->down);
  for (const char* other : {"moe_op", "moe_op.w13_list", "moe_op.w13_list.", "moe_op.w2_list.a", "w2_list.1",
                            "moe_op.w2_list.1234567", "moe_op.w2_list.1.weight"})
    EXPECT_FALSE(expert_weight(other).has_value()) << other;
}

}  // namespace
}  // namespace fp8::quant
