// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/tools/commands/train/train_start.h"

namespace fp8::commands {
namespace {

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
