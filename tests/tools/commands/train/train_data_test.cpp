// SPDX-License-Identifier: Apache-2.0
// Batches of chunks: every chunk once an epoch, another order in each, any place can be gone back to. The loss by its
// formula in f64.
#include "fp8/tools/commands/train/train_data.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fp8/tools/commands/train/train_task.h"
#include "support/enum_names.h"

namespace fp8::commands {
namespace {

/// Chunk i is [10 i, 10 i + 1, 10 i + 2].
text::Chunks chunks(std::int64_t count) {
  text::Chunks result;
  result.count = count;
  result.length = 3;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t k = 0; k < 3; ++k) result.ids.push_back(10 * i + k);
  return result;
}

std::vector<std::int64_t> first_ids(TextBatches& batches) {
  std::vector<std::int64_t> found;
  while (const auto batch = batches.next()) {
    const auto& ids = batch->tensors[0];
    EXPECT_EQ(ids.size(0), batch->samples);
    EXPECT_EQ(batch->tokens, batch->samples * 3);
    for (std::int64_t i = 0; i < ids.size(0); ++i) {
      found.push_back(ids[i][0].item<std::int64_t>() / 10);
      EXPECT_EQ(ids[i][2].item<std::int64_t>(), 10 * found.back() + 2);
    }
  }
  return found;
}

TEST(TextBatches, InOrderWithARaggedLast) {
  TextBatches batches(chunks(7), 3, /*shuffle=*/false, 0, at::kCPU);
  EXPECT_EQ(batches.batches(), 3);
  batches.seek(0, 0);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
  batches.seek(1, 2);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(6));
  batches.seek(1, 3);
  EXPECT_TRUE(first_ids(batches).empty());
}

TEST(TextBatches, EveryEpochIsAnotherOrderOfAll) {
  TextBatches a(chunks(100), 8, true, 3, at::kCPU), b(chunks(100), 8, true, 3, at::kCPU),
      other(chunks(100), 8, true, 4, at::kCPU);
  a.seek(0, 0);
  const auto first = first_ids(a);
  a.seek(1, 0);
  const auto second = first_ids(a);
  EXPECT_NE(first, second);
  other.seek(0, 0);
  EXPECT_NE(first_ids(other), first);
  auto sorted = second;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[static_cast<std::size_t>(i)], i);
  b.seek(1, 5);  // without having seen epoch 0
  EXPECT_EQ(first_ids(b), std::vector<std::int64_t>(second.begin() + 40, second.end()));
}

TEST(TextBatches, TheFingerprintIsThatOfTheText) {
  auto changed = chunks(5);
  changed.ids.back() += 1;
  const TextBatches a(chunks(5), 2, true, 0, at::kCPU), b(chunks(5), 3, false, 9, at::kCPU),
      c(changed, 2, true, 0, at::kCPU);
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_NE(a.fingerprint(), c.fingerprint());
}

TEST(OptimizerSettings, KindsHaveNames) { test::check_names<OptimizerSettings::Kind>(); }

TEST(NextTokenLoss, IsTheMeanOverPredictedTokens) {
  const auto logits = at::arange(2 * 4 * 5, at::kFloat).sin().mul(3).view({2, 4, 5});
  const auto ids = at::arange(2 * 4, at::kLong).mul(3).remainder(5).view({2, 4});
  double sum = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i + 1 < 4; ++i) {
      double total = 0;
      for (std::int64_t v = 0; v < 5; ++v) total += std::exp(static_cast<double>(logits[b][i][v].item<float>()));
      sum -= static_cast<double>(logits[b][i][ids[b][i + 1].item<std::int64_t>()].item<float>()) - std::log(total);
    }
  EXPECT_NEAR(next_token_loss(logits, ids).item<double>(), sum / 6, 1e-6);
  EXPECT_EQ(next_token_loss(logits.to(at::kBFloat16), ids).scalar_type(), at::kFloat);
  EXPECT_NEAR(next_token_loss(logits.to(at::kBFloat16), ids).item<double>(), sum / 6, 2e-2);
}

}  // namespace
}  // namespace fp8::commands
