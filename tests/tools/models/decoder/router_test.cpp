// SPDX-License-Identifier: Apache-2.0
// Routers against loops in double.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fp8/tools/models/decoder/mlp.h"

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

}  // namespace
}  // namespace fp8::models
