// SPDX-License-Identifier: Apache-2.0
// embedding_bag with a tagged weight: bags of decoded rows, in all modes, against the CPU's op on the decoded weight.
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using at::Tensor;
constexpr double kScale = 0.05;

/// A converted weight [9, 6] and its decoded values on the CPU.
struct Converted {
  Tensor weight, decoded;
  std::shared_ptr<CodesHandler> handler = std::make_shared<CodesHandler>(kScale);
  Converted() {
    torch::manual_seed(5);
    weight = at::randn({9, 6}, on_hpu());
    decoded = (weight.cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale;
    convert_to_codes(weight, "bags", handler, kScale);
  }
};

const Tensor kIndices = at::tensor({7, 2, 7, 5, 0, 8, 2, 2}), kOffsets = at::tensor({0, 3, 3, 6});  // bag 1 is empty

void expect_same(const std::tuple<Tensor, Tensor, Tensor, Tensor>& got,
                 const std::tuple<Tensor, Tensor, Tensor, Tensor>& expected, const std::string& what) {
  EXPECT_TRUE(std::get<0>(got).device().is_hpu());
  EXPECT_TRUE(same_bits(std::get<0>(got), std::get<0>(expected))) << what;
  EXPECT_TRUE(same_bits(std::get<2>(got), std::get<2>(expected))) << what << ": bag sizes";
  EXPECT_TRUE(same_bits(std::get<3>(got), std::get<3>(expected))) << what << ": rows of the maxima";
}

void expect_modes() {
  for (const std::int64_t mode : {0, 1, 2}) {
    for (const auto type : {at::kLong, at::kInt}) {
      const Converted c;
      const Tensor indices = kIndices.to(type), offsets = kOffsets.to(type);
      expect_same(at::embedding_bag(c.weight, hpu(indices), hpu(offsets), false, mode),
                  at::embedding_bag(c.decoded, indices, offsets, false, mode), "mode " + std::to_string(mode));
      EXPECT_EQ(c.handler->dequantized, 1);
    }
  }
}

TEST(EmbeddingBagCodes, SumMeanAndMaxOfDecodedRows) { in_every_mode(expect_modes); }

TEST(EmbeddingBagCodes, PaddingWeightsAndLastOffset) {
  const Converted c;
  for (const std::int64_t padding : {2, 7, 3, -2}) {  // 3 is not asked for, -2 is 7
    for (const std::int64_t mode : {0, 1, 2}) {
      expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, mode, false, {}, false, padding),
                  at::embedding_bag(c.decoded, kIndices, kOffsets, false, mode, false, {}, false, padding),
                  "padding " + std::to_string(padding));
    }
  }
  const Tensor weights = at::rand({8});
  expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, 0, false, hpu(weights)),
              at::embedding_bag(c.decoded, kIndices, kOffsets, false, 0, false, weights), "per_sample_weights");
  const Tensor with_last = at::tensor({0, 3, 3, 6, 8});
  expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(with_last), false, 0, false, {}, true),
              at::embedding_bag(c.decoded, kIndices, with_last, false, 0, false, {}, true), "include_last_offset");
}

TEST(EmbeddingBagCodes, ModulesAndEmptyBags) {
  for (const bool bags_of_nothing : {false, true}) {
    torch::manual_seed(5);
    torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(9, 6).mode(torch::kSum));
    bag->to(kHpu);
    const Tensor decoded = (bag->weight.detach().cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale;
    convert_to_codes(bag->weight, "bags", std::make_shared<CodesHandler>(kScale), kScale);
    const Tensor ids = bags_of_nothing ? at::empty({0}, at::kLong) : at::tensor({1, 8, 8, 3}).view({2, 2});
    const Tensor offsets = bags_of_nothing ? at::zeros({3}, at::kLong) : Tensor();
    const Tensor y = bag->forward(hpu(ids), offsets.defined() ? hpu(offsets) : offsets);
    if (bags_of_nothing) {
      EXPECT_TRUE(same_bits(y, at::zeros({3, 6})));
    } else {
      EXPECT_TRUE(same_bits(y, at::embedding(decoded, ids).sum(1)));
    }
  }
}

TEST(EmbeddingBagCodes, BadIndicesThrow) {
  const Converted c;
  EXPECT_NE(error_of([&] { at::embedding_bag(c.weight, hpu(at::tensor({9})), hpu(at::tensor({0}))); }), "");
  EXPECT_NE(error_of([&] { at::embedding_bag(c.weight, hpu(at::tensor({-1})), hpu(at::tensor({0}))); }), "");
  EXPECT_REFUSED(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, 0, false, {}, false, 9),
                 "padding_idx must be within");
  EXPECT_REFUSED(at::embedding_bag(c.weight.t(), hpu(at::tensor({1})), hpu(at::tensor({0}))), "embedding_bag",
                 "module 'bags'", "whole rows");
}

TEST(EmbeddingBagWatchers, ChangeNoBitAndTrain) {
  const auto run = [](bool tagged) {
    torch::manual_seed(5);
    Tensor w = at::randn({9, 6}, on_hpu()).set_requires_grad(true);
    if (tagged) runtime::tag_weight(w, "bags", std::make_shared<RecordingHandler>());
    const Tensor y = std::get<0>(at::embedding_bag(w, hpu(kIndices), hpu(kOffsets)));
    y.square().sum().backward();
    return std::pair(y.detach(), w.grad());
  };
  const auto [y, grad] = run(true);
  const auto [expected_y, expected_grad] = run(false);
  EXPECT_TRUE(same_bits(y, expected_y));
  EXPECT_TRUE(same_bits(grad, expected_grad));
}

}  // namespace
}  // namespace fp8::test
