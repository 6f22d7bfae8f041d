// SPDX-License-Identifier: Apache-2.0
// Routers against loops in double.
#include <ATen/Functions.h>

#include <numeric>

#include "fp8/tools/models/decoder/mlp.h"
#include "support/matchers.h"

namespace fp8::models {
namespace {

using Row = std::vector<double>;

std::vector<std::size_t> best(const Row& scores, std::size_t count) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  order.resize(count);
  return order;
}

Row softmax_of(const Row& x) {
  const double most = *std::max_element(x.begin(), x.end());
  Row p;
  double sum = 0;
  for (const double v : x) p.push_back(std::exp(v - most)), sum += p.back();
  for (double& v : p) v /= sum;
  return p;
}

/// The weight of each expert, 0 where it is not chosen.
Row routed(const MoeSpec& spec, const Row& logits, const Row& correction) {
  const auto top = static_cast<std::size_t>(spec.top_k);
  Row weights(logits.size(), 0.0), p = logits;
  if (spec.routing == Routing::top_softmax || spec.routing == Routing::input) {
    const auto chosen = best(logits, top);
    Row values;
    for (const auto e : chosen) values.push_back(logits[e]);
    const auto q = softmax_of(values);
    for (std::size_t i = 0; i < top; ++i)
      weights[chosen[i]] = spec.routing == Routing::input ? 1 / (1 + std::exp(-values[i])) : q[i];
    return weights;
  }
  if (spec.routing == Routing::sigmoid)
    for (double& v : p) v = 1 / (1 + std::exp(-v));
  else
    p = softmax_of(logits);
  Row choice = p;
  for (std::size_t e = 0; e < choice.size(); ++e) choice[e] += correction.empty() ? 0 : correction[e];
  if (spec.groups > 1) {
    const auto size = choice.size() / static_cast<std::size_t>(spec.groups);
    Row good;
    for (std::size_t g = 0; g < choice.size(); g += size) {
      Row group(choice.begin() + static_cast<std::ptrdiff_t>(g),
                choice.begin() + static_cast<std::ptrdiff_t>(g + size));
      std::sort(group.rbegin(), group.rend());
      good.push_back(spec.group_by_two ? group[0] + group[1] : group[0]);
    }
    const auto kept = best(good, static_cast<std::size_t>(spec.top_groups));
    for (std::size_t e = 0; e < choice.size(); ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) choice[e] = -1e300;
  }
  double sum = 0;
  for (const auto e : best(choice, top)) sum += weights[e] = p[e];
  if (spec.renormalize)
    for (double& w : weights) w /= spec.sum_added ? sum + spec.sum_floor : std::max(sum, spec.sum_floor);
  for (double& w : weights) w *= spec.scaling;
  return weights;
}

void expect_routes(const MoeSpec& spec, bool corrected = false) {
  const auto logits = (at::arange(6 * spec.experts, at::kFloat) * 1.37).sin().view({6, spec.experts}) * 2;
  const auto correction = corrected ? (at::arange(spec.experts, at::kFloat) * 2.9).cos() * 0.4 : at::Tensor();
  const auto found = route(spec, logits, correction);
  ASSERT_EQ(found.experts.sizes(), (std::vector<std::int64_t>{6, spec.top_k}));
  EXPECT_EQ(found.weights.scalar_type(), at::kFloat);
  const auto values = [](const at::Tensor& t) {
    const auto wide = t.to(at::kDouble).contiguous();
    return Row(wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel());
  };
  for (std::int64_t t = 0; t < 6; ++t) {
    const auto expected = routed(spec, values(logits[t]), corrected ? values(correction) : Row());
    Row weights(expected.size(), 0.0);
    for (std::int64_t k = 0; k < spec.top_k; ++k)
      weights[static_cast<std::size_t>(found.experts[t][k].item<std::int64_t>())] = found.weights[t][k].item<double>();
    for (std::size_t e = 0; e < expected.size(); ++e) EXPECT_NEAR(weights[e], expected[e], 1e-6) << t << ", " << e;
  }
}

TEST(Router, ChoosesAndWeighs) {
  expect_routes({.experts = 7, .top_k = 3});
  expect_routes({.experts = 7, .top_k = 3, .renormalize = true});
  expect_routes({.experts = 7, .top_k = 1, .scaling = 2.5});
  expect_routes({.experts = 5, .top_k = 2, .routing = Routing::top_softmax});
  expect_routes({.experts = 5, .top_k = 5, .routing = Routing::top_softmax});
  expect_routes({.experts = 5, .top_k = 2, .routing = Routing::input});
  expect_routes({.experts = 8,
                 .top_k = 3,
                 .routing = Routing::sigmoid,
                 .renormalize = true,
                 .sum_floor = 0.5,
                 .sum_added = true,
                 .scaling = 1.5});
  expect_routes({.experts = 8, .top_k = 3, .routing = Routing::sigmoid, .renormalize = true, .sum_floor = 10});
}

TEST(Router, ACorrectionChoosesAndDoesNotWeigh) {
  expect_routes({.experts = 8, .top_k = 2, .routing = Routing::sigmoid}, true);
  expect_routes({.experts = 8, .top_k = 2, .renormalize = true}, true);
}

TEST(Router, OtherThanTheBestGroupsAreNotChosen) {
  for (const bool two : {false, true})
    expect_routes(
        {.experts = 12, .top_k = 3, .routing = Routing::sigmoid, .groups = 4, .top_groups = 2, .group_by_two = two},
        true);
  expect_routes({.experts = 12, .top_k = 2, .groups = 3, .top_groups = 1});
}

/// Phi-3.5-MoE's: each of two choices is weighed by the softmax of the logits that are within 2 jitter of it,
/// relative to the larger magnitude; the first is out of the second's.
TEST(Router, TheSparseMixerLooksAtWhatIsNear) {
  const double jitter = 0.1;
  const Row logits = {1.0, 0.95, -2.0, 0.7};
  const auto found = route({.experts = 4, .top_k = 2, .routing = Routing::sparsemixer, .jitter = jitter},
                           at::tensor({1.0f, 0.95f, -2.0f, 0.7f}).view({1, 4}), {});
  EXPECT_EQ(found.experts[0][0].item<std::int64_t>(), 0);
  EXPECT_EQ(found.experts[0][1].item<std::int64_t>(), 1);
  // 0.95 is 5 % off and near; 0.7 is 30 % off, and 26 % from the second: both far.
  EXPECT_NEAR(found.weights[0][0].item<double>(), std::exp(1.0) / (std::exp(1.0) + std::exp(0.95)), 1e-6);
  EXPECT_NEAR(found.weights[0][1].item<double>(), 1.0, 1e-6);
}

// Routers where experts are alike, sums small and scores negative; the sparse mixer against Phi-3.5-MoE's sparsemixer()
// as loops in double.

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
  for (const auto routing : {Routing::softmax, Routing::top_softmax, Routing::sigmoid, Routing::input})
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
