// SPDX-License-Identifier: Apache-2.0
// Batches of chunks: every chunk once an epoch, another order in each, any place can be gone back to. The loss by its
// formula in f64.
#include <ATen/Functions.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/tools/commands/train/train_start.h"
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

TEST(TextBatches, AMultipleLeavesOutTheRest) {
  TextBatches batches(chunks(7), 2, /*shuffle=*/false, 0, at::kCPU, /*multiple=*/4);
  EXPECT_EQ(batches.batches(), 2);
  batches.seek(0, 0);
  EXPECT_THAT(first_ids(batches), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batches.deal(1, 0, 1, 2)->samples, 2);  // two ranks, one whole group
  EXPECT_EQ(batches.deal(1, 2, 0, 2)->samples, 0);
  TextBatches drawn(chunks(7), 4, /*shuffle=*/true, 3, at::kCPU, /*multiple=*/4);
  std::vector<bool> met(7);
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    drawn.seek(epoch, 0);
    const auto ids = first_ids(drawn);
    EXPECT_EQ(ids.size(), 4u);
    for (const auto id : ids) met[static_cast<std::size_t>(id)] = true;
  }
  EXPECT_EQ(std::count(met.begin(), met.end(), true), 7);  // another rest in each epoch
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

/// torch: list(DistributedSampler(range(13), 2, rank)) is order[rank::2], and then repeats the first to fill up.
TEST(TextBatches, AreDealtAsDistributedSamplerDoes) {
  TextBatches alone(chunks(13), 3, true, 3, at::kCPU), dealt(chunks(13), 3, true, 3, at::kCPU);
  alone.seek(1, 0);
  const auto order = first_ids(alone);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::int64_t> found, expected, sizes;
    for (std::int64_t batch = 0; batch < 6; batch += 2) {
      const auto part = dealt.deal(1, batch, rank, 2);
      ASSERT_TRUE(part.has_value());
      sizes.push_back(part->samples);
      EXPECT_EQ(part->tokens, 3 * part->samples);
      for (std::int64_t i = 0; i < part->samples; ++i)
        found.push_back(part->tensors[0][i][0].item<std::int64_t>() / 10);
    }
    for (std::size_t i = static_cast<std::size_t>(rank); i < order.size(); i += 2) expected.push_back(order[i]);
    EXPECT_EQ(found, expected);
    EXPECT_THAT(sizes, ::testing::ElementsAre(3, 3, rank == 0 ? 1 : 0));
  }
  EXPECT_EQ(dealt.deal(1, 3, 0, 2)->samples, 2);  // from batch 3 on, 4 chunks are left
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

/// Samples [3] that hold their number, but one of them another.
class Numbered : public data::Dataset {
 public:
  explicit Numbered(std::int64_t changed = -1) : changed_(changed) {}
  std::int64_t size() const override { return 10; }
  std::vector<at::Tensor> get(std::int64_t index, data::SampleRandom&) const override {
    return {at::full({3}, static_cast<double>(index == changed_ ? -1 : index))};
  }

 private:
  std::int64_t changed_;
};

io::Json facts_of_loader(std::int64_t changed, std::int64_t batch = 4) {
  data::DataLoader loader(std::make_shared<Numbered>(changed), {.batch_size = batch});
  const auto facts = facts_of(loader);
  EXPECT_EQ(loader.next()->tensors[0][0][0].item<float>(), changed == 0 ? -1 : 0);  // at the beginning
  return facts;
}

io::Json facts_of_text(std::vector<std::int64_t> ids, std::int64_t batch = 1) {
  TextBatches text({std::move(ids), 4, 2}, batch, /*shuffle=*/false, 0, at::kCPU);
  return facts_of(text);
}

TEST(SourceFacts, OtherSamplesAreOtherFacts) {
  const auto facts = facts_of_loader(-1);
  EXPECT_EQ(facts["batches"], 3);
  EXPECT_EQ(facts["first batch"][0], 4);
  EXPECT_EQ(facts["last batch"][0], 2);
  EXPECT_EQ(facts_of_loader(-1), facts);
  EXPECT_NE(facts_of_loader(0)["first batch"], facts["first batch"]);
  EXPECT_NE(facts_of_loader(9)["last batch"], facts["last batch"]);
  EXPECT_NE(facts_of_loader(-1, 3), facts);
}

TEST(SourceFacts, OfATextAllOfItIsCompared) {
  const std::vector<std::int64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  auto other = ids;
  other[2] = 9;
  EXPECT_EQ(facts_of_text(ids), facts_of_text(ids));
  EXPECT_NE(facts_of_text(ids)["text"], facts_of_text(other)["text"]);
  EXPECT_NE(facts_of_text(ids), facts_of_text(ids, 2));
}

}  // namespace
}  // namespace fp8::commands
