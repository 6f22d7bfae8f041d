// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {
namespace {

void expect_slopes(const at::Tensor& found, const std::vector<double>& exponents) {
  ASSERT_EQ(found.numel(), static_cast<std::int64_t>(exponents.size()));
  for (std::size_t i = 0; i < exponents.size(); ++i)
    EXPECT_NEAR(found[static_cast<std::int64_t>(i)].item<double>() / std::exp2(-exponents[i]), 1, 1e-6) << i;
}

/// arXiv:2108.12409: 1/2, 1/4, ... 1/256 for 8 heads; 2^-0.5 ... 2^-8 for 16.
TEST(AlibiSlopes, PowersOfTwo) {
  expect_slopes(alibi_slopes(8, 8), {1, 2, 3, 4, 5, 6, 7, 8});
  expect_slopes(alibi_slopes(4, 8), {2, 4, 6, 8});
  expect_slopes(alibi_slopes(1, 8), {8});
  expect_slopes(alibi_slopes(4, 16), {4, 8, 12, 16});
}

/// The paper's own code: those of the power below, then every second of the power above. MPT's order, those at odd
/// places of the power above and then those at even ones, is the same.
TEST(AlibiSlopes, OtherNumbers) {
  expect_slopes(alibi_slopes(6, 8), {2, 4, 6, 8, 1, 3});
  expect_slopes(alibi_slopes(5, 8), {2, 4, 6, 8, 1});
  expect_slopes(alibi_slopes(12, 8), {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
}

}  // namespace
}  // namespace fp8::models
