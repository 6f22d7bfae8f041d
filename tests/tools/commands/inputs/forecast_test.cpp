// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/forecast.h"

#include <gtest/gtest.h>

#include "fp8/tools/models/registry.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kWide = 16, kWidest = 24, kBlocks = 2, kWords = 32, kOfThem = 4;

std::shared_ptr<models::CausalLM> model_of(const io::Json& more) {
  io::Json config = {{"vocab_size", kWords},          {"hidden_size", kWide},        {"intermediate_size", kWidest},
                     {"num_hidden_layers", kBlocks},  {"num_attention_heads", 4},    {"num_key_value_heads", 2},
                     {"max_position_embeddings", 64}, {"tie_word_embeddings", false}};
  config.update(more);
  return models::parse_config(config, "config.json").make();
}

constexpr std::int64_t kHeadWeights = 2 * kWide * kWide + 2 * (kWide / 2) * kWide, kMlpWeights = 3 * kWidest * kWide;

TEST(Forecast, EachWeightThatMultipliesATokenCounts) {
  EXPECT_EQ(multiplied_weights(*model_of({{"model_type", "llama"}})),
            kBlocks * (kHeadWeights + kMlpWeights) + kWords * kWide);
  // A token is sent to two of four experts; the router sees each.
  const auto mixture =
      model_of({{"model_type", "mixtral"}, {"num_local_experts", kOfThem}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(multiplied_weights(*mixture),
            kBlocks * (kHeadWeights + 2 * kMlpWeights + kOfThem * kWide) + kWords * kWide);
}

TEST(Forecast, OperationsAreThoseOfProductsAndAttention) {
  const auto model = model_of({{"model_type", "llama"}});
  const auto work = forward_work("measure", *model, /*tokens=*/1000, /*columns=*/50, /*bytes=*/7);
  // Two for each weight; a token has 25 before it at the mean, whose keys and values are H wide in each layer.
  EXPECT_DOUBLE_EQ(work.operations, 1000.0 * (2.0 * multiplied_weights(*model) + 2 * 2 * 25 * kWide * kBlocks));
}

TEST(Forecast, IsSaidOfRunsOfMoreThanAMinute) {
  const Work work{"measure", 8'030'000'000, 131'072, 120e9, 17'100'000'000};
  EXPECT_EQ(forecast_text(work, 2.1e9), "");
  EXPECT_EQ(forecast_text(work, 1e9),
            "measure: about 2 min and 17.1 GB of memory: 131,072 tokens x 8.03 G weights, reckoned at 1 GFLOP/s as "
            "tried on this machine");
}

}  // namespace
}  // namespace fp8::commands
