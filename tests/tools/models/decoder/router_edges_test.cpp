// SPDX-License-Identifier: Apache-2.0
// Routers where experts are alike, sums small and scores negative; the sparse mixer against Phi-3.5-MoE's sparsemixer()
// as loops in double.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "fp8/tools/models/decoder/mlp.h"

namespace fp8::models {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<std::int64_t> experts_of(const Routes& routes, std::int64_t token) {
  const at::Tensor row = routes.experts[token].contiguous();
  return {row.const_data_ptr<std::int64_t>(), row.const_data_ptr<std::int64_t>() + row.numel()};
}

std::vector<double> weights_of(const Routes& routes, std::int64_t token) {
  const at::Tensor row = routes.weights[token].to(at::kDouble).contiguous();
  return {row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel()};
}

/// Far apart in each row: steps of the golden ratio.
at::Tensor spread_logits(std::int64_t tokens, std::int64_t experts, double width) {
  const at::Tensor steps = at::arange(1, tokens * experts + 1, at::kDouble) * 0.6180339887498949;
  return ((steps - steps.floor()) * 2 * width - width).to(at::kFloat).view({tokens, experts});
}

TEST(RouterEdges, ExpertsThatAreAlikeAreEachTakenOnce) {
  const at::Tensor logits = at::full({3, 8}, 0.5f);
  for (const auto routing : {Routing::softmax, Routing::top_softmax, Routing::sigmoid, Routing::input}) {
    for (const bool renormalize : {false, true}) {
      const auto routes = route({.experts = 8, .top_k = 4, .routing = routing, .renormalize = renormalize}, logits, {});
      const double alone = 1 / (1 + std::exp(-0.5));
      const double weight = routing == Routing::input         ? alone
                            : routing == Routing::top_softmax ? 0.25
                            : renormalize                     ? 0.25
                            : routing == Routing::sigmoid     ? alone
                                                              : 0.125;
      for (std::int64_t token = 0; token < 3; ++token) {
        const auto experts = experts_of(routes, token);
        EXPECT_EQ(std::set<std::int64_t>(experts.begin(), experts.end()).size(), 4);
        EXPECT_EQ(experts, experts_of(routes, 0));
        EXPECT_THAT(weights_of(routes, token), Each(::testing::DoubleNear(weight, 1e-6)));
      }
    }
  }
}

TEST(RouterEdges, TheBestComesFirst) {
  const at::Tensor logits = at::tensor({0.0f, 3.0f, 1.0f, 2.0f}).view({1, 4});
  for (const auto routing : {Routing::softmax, Routing::top_softmax, Routing::sigmoid, Routing::input})
    EXPECT_THAT(experts_of(route({.experts = 4, .top_k = 3, .routing = routing}, logits, {}), 0), ElementsAre(1, 3, 2));
}

TEST(RouterEdges, LogitsOfFewBitsAreComputedInF32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = spread_logits(16, 8, 3).to(dtype);
    for (const auto routing : {Routing::softmax, Routing::top_softmax, Routing::sigmoid, Routing::input}) {
      const MoeSpec spec = {.experts = 8, .top_k = 3, .routing = routing, .renormalize = true, .scaling = 2.5};
      const auto narrow = route(spec, logits, {}), wide = route(spec, logits.to(at::kFloat), {});
      EXPECT_EQ(narrow.weights.scalar_type(), at::kFloat);
      EXPECT_EQ(narrow.experts.scalar_type(), at::kLong);
      EXPECT_TRUE(narrow.experts.equal(wide.experts) && narrow.weights.equal(wide.weights));
    }
  }
}

/// sigmoid(-2) = 0.1192, two of them are less than the floor of 0.5.
TEST(RouterEdges, ASmallSumIsHeldUpOrAddedTo) {
  const at::Tensor logits = at::tensor({-2.0f, -2.0f, -4.0f}).view({1, 3});
  const double p = 1 / (1 + std::exp(2));
  MoeSpec spec = {.experts = 3, .top_k = 2, .routing = Routing::sigmoid, .renormalize = true, .sum_floor = 0.5};
  EXPECT_THAT(weights_of(route(spec, logits, {}), 0), Each(::testing::DoubleNear(p / 0.5, 1e-6)));
  spec.sum_added = true;
  EXPECT_THAT(weights_of(route(spec, logits, {}), 0), Each(::testing::DoubleNear(p / (2 * p + 0.5), 1e-6)));
  spec.sum_added = false, spec.sum_floor = 0.1;  // the sum is larger
  EXPECT_THAT(weights_of(route(spec, logits, {}), 0), Each(::testing::DoubleNear(0.5, 1e-6)));
  spec.scaling = 3;
  EXPECT_THAT(weights_of(route(spec, logits, {}), 0), Each(::testing::DoubleNear(1.5, 1e-6)));
}

TEST(RouterEdges, ACorrectionMayBeAMatrixAndOfFewBits) {
  const at::Tensor logits = at::tensor({2.0f, 1.0f, 0.0f, -1.0f}).view({1, 4});
  const at::Tensor correction = at::tensor({-1.0f, 0.0f, 0.0f, 1.0f}).view({1, 4});
  for (const at::Tensor& given : {correction, correction.flatten(), correction.to(at::kBFloat16)}) {
    const auto routes = route({.experts = 4, .top_k = 2, .routing = Routing::sigmoid}, logits, given);
    EXPECT_THAT(experts_of(routes, 0), ElementsAre(3, 1));  // 0.269 + 1, 0.731; expert 0: 0.881 - 1
    EXPECT_THAT(weights_of(routes, 0), ElementsAre(::testing::DoubleNear(1 / (1 + std::exp(1)), 1e-6),
                                                   ::testing::DoubleNear(1 / (1 + std::exp(-1)), 1e-6)));
  }
}

/// Scores below zero are still better than those of another group.
TEST(RouterEdges, GroupsAreKeptWhateverTheSignOfTheirScores) {
  const at::Tensor logits = spread_logits(8, 12, 3), correction = at::full({12}, -5.0f);
  for (const bool by_two : {false, true}) {
    const MoeSpec spec = {.experts = 12, .top_k = 4, .routing = Routing::sigmoid, .groups = 3, .group_by_two = by_two};
    const auto routes = route(spec, logits, correction);
    for (std::int64_t token = 0; token < 8; ++token) {
      const auto experts = experts_of(routes, token);  // all four of one group
      EXPECT_EQ(std::set<std::int64_t>(experts.begin(), experts.end()).size(), 4);
      for (const auto expert : experts) EXPECT_EQ(expert / 4, experts[0] / 4) << token;
      if (by_two) continue;
      EXPECT_EQ(experts[0], logits[token].argmax().item<std::int64_t>());
    }
  }
  MoeSpec all = {.experts = 12, .top_k = 4, .routing = Routing::sigmoid, .groups = 3, .top_groups = 3};
  const auto grouped = route(all, logits, {});
  all.groups = all.top_groups = 1;
  EXPECT_TRUE(grouped.experts.equal(route(all, logits, {}).experts));
}

struct MixedChoice {
  std::size_t expert;
  double weight;
};

/// One of its two rounds; taken: the expert that is out, or none.
MixedChoice published_mixer_round(const std::vector<double>& scores, std::size_t taken, double jitter) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::size_t most = taken == 0 ? 1 : 0;
  for (std::size_t e = 0; e < scores.size(); ++e)
    if (e != taken && scores[e] > scores[most]) most = e;
  double sum = 0;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const double factor = std::max(std::abs(scores[e]), scores[most]);
    const bool far = (scores[most] - scores[e]) / factor > 2 * jitter;  // 0 / 0 is not
    sum += std::exp((far || e == taken ? kNone : scores[e]) - scores[most]);
  }
  return {most, 1 / sum};
}

TEST(RouterEdges, TheSparseMixerIsTwoRounds) {
  for (const double jitter : {0.01, 0.2}) {
    const at::Tensor logits = spread_logits(32, 16, 2);
    const auto routes =
        route({.experts = 16, .top_k = 2, .routing = Routing::sparsemixer, .jitter = jitter}, logits, {});
    for (std::int64_t token = 0; token < 32; ++token) {
      const at::Tensor wide = logits[token].to(at::kDouble).contiguous();
      const std::vector<double> scores(wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + 16);
      const auto first = published_mixer_round(scores, 16, jitter);
      const auto second = published_mixer_round(scores, first.expert, jitter);
      EXPECT_THAT(experts_of(routes, token), ElementsAre(first.expert, second.expert)) << token;
      EXPECT_THAT(weights_of(routes, token),
                  ElementsAre(::testing::DoubleNear(first.weight, 1e-6), ::testing::DoubleNear(second.weight, 1e-6)))
          << token;
    }
  }
}

TEST(RouterEdges, TheSparseMixerOfZerosAndOfNegatives) {
  const MoeSpec spec = {.experts = 4, .top_k = 2, .routing = Routing::sparsemixer, .jitter = 0.01};
  const auto zeros = route(spec, at::zeros({1, 4}), {});
  EXPECT_NE(experts_of(zeros, 0)[0], experts_of(zeros, 0)[1]);
  EXPECT_THAT(weights_of(zeros, 0),
              ElementsAre(::testing::DoubleNear(0.25, 1e-6), ::testing::DoubleNear(1.0 / 3, 1e-6)));
  // -1.01 is 0.99 % of its magnitude below -1; -1.5 a third.
  const auto negative = route(spec, at::tensor({-1.5f, -1.0f, -3.0f, -1.01f}).view({1, 4}), {});
  EXPECT_THAT(experts_of(negative, 0), ElementsAre(1, 3));
  EXPECT_THAT(weights_of(negative, 0),
              ElementsAre(::testing::DoubleNear(1 / (1 + std::exp(-0.01)), 1e-6), ::testing::DoubleNear(1.0, 1e-6)));
}

}  // namespace
}  // namespace fp8::models
