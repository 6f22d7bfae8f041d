// SPDX-License-Identifier: Apache-2.0
// f32 products against f64 sums and against the one chain of sums they promise, on every level; exponentials against
// std::exp in f64 over all exponents.
#include <gtest/gtest.h>

#include <random>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/simd.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using test::levels;

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

/// One chain in ascending k, each product and sum rounded.
std::vector<float> chain(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k,
                         std::vector<float> c) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      volatile float sum = c[static_cast<std::size_t>(i * n + j)];
      for (std::int64_t p = 0; p < k; ++p) {
        volatile float product =
            a.data[i * a.row_stride + p * a.col_stride] * b.data[p * b.row_stride + j * b.col_stride];
        sum = sum + product;
      }
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

TEST(Multiply, IsOneChainOfSumsOnEveryLevel) {
  const std::int64_t sizes[][3] = {{1, 1, 1},    {5, 7, 3},    {6, 32, 64}, {13, 33, 300},
                                   {7, 65, 513}, {64, 20, 17}, {3, 4, 0}};
  for (const auto& [m, n, k] : sizes) {
    const auto a = random_values(static_cast<std::size_t>(m * k + 1), 1),
               b = random_values(static_cast<std::size_t>(n * k + 1), 2);
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        const F32View av{a.data(), a_turned ? 1 : k, a_turned ? m : 1},
            bv{b.data(), b_turned ? 1 : n, b_turned ? k : 1};
        const std::vector<float> start = random_values(static_cast<std::size_t>(m * n), 3), zero(start.size(), 0.0f);
        for (const SimdLevel level : levels()) {
          const ScopedSimdLevel scope(level);
          std::vector<float> c(start.size(), std::numeric_limits<float>::quiet_NaN()), added = start;
          multiply(av, bv, m, n, k, c.data(), n, false);
          multiply(av, bv, m, n, k, added.data(), n, true);
          EXPECT_EQ(c, chain(av, bv, m, n, k, zero)) << name_of(level) << " " << m << " " << n << " " << k;
          EXPECT_EQ(added, chain(av, bv, m, n, k, start)) << name_of(level);
        }
      }
    }
  }
}

TEST(Multiply, LeavesWhatLiesBetweenTheRowsOfC) {
  const auto a = random_values(6 * 8, 1), b = random_values(8 * 5, 2);
  std::vector<float> c(6 * 9, 42.0f);
  multiply({a.data(), 8, 1}, {b.data(), 5, 1}, 6, 5, 8, c.data(), 9, false);
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 9; ++j) EXPECT_EQ(c[static_cast<std::size_t>(i * 9 + j)] == 42.0f, j >= 5);
  }
}

TEST(ExpShifted, IsCloseToTheRealOneEverywhere) {
  std::vector<float> x;
  for (float v = -104.0f; v < 89.0f; v += 0.00317f) x.push_back(v);
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, -87.33f, -103.9f, 88.72f, 0.34657f, -0.34658f}) x.push_back(v);
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scope(level);
    for (const float shift : {0.0f, 2.5f, -0.25f}) {
      std::vector<float> y = x;
      exp_shifted(y.data(), static_cast<std::int64_t>(y.size()), shift);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double exact = std::exp(static_cast<double>(x[i] - shift));
        if (exact > std::numeric_limits<float>::max()) continue;
        ASSERT_NEAR(y[i], exact, exact * 0x1p-22 + 0x1p-149) << x[i] << " - " << shift << " " << name_of(level);
      }
    }
  }
}

TEST(ExpShifted, SpecialValuesAndEveryLength) {
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scope(level);
    for (std::int64_t n = 0; n < 40; ++n) {
      std::vector<float> x(static_cast<std::size_t>(n) + 1, 1.0f);
      exp_shifted(x.data(), n, 1.0f);
      for (std::int64_t i = 0; i <= n; ++i)
        EXPECT_EQ(x[static_cast<std::size_t>(i)], 1.0f);  // e^0, and one not touched
    }
    std::vector<float> x = {-INFINITY, INFINITY, NAN, -1e30f, 1e30f, -150.0f};
    exp_shifted(x.data(), 6, 0.0f);
    EXPECT_EQ(x[0], 0.0f);
    EXPECT_EQ(x[1], INFINITY);
    EXPECT_TRUE(std::isnan(x[2]));
    EXPECT_EQ(x[3], 0.0f);
    EXPECT_EQ(x[4], INFINITY);
    EXPECT_EQ(x[5], 0.0f);
  }
}

TEST(SumAndMax, EveryLength) {
  for (std::int64_t n = 0; n < 100; ++n) {
    const auto x = random_values(static_cast<std::size_t>(n), static_cast<unsigned>(n));
    double sum = 0, magnitude = 0;
    float max = -INFINITY;
    for (const float v : x) {
      sum += v;
      magnitude += std::fabs(v);
      max = std::max(max, v);
    }
    EXPECT_NEAR(sum_of(x.data(), n), sum, magnitude * 0x1p-21);
    EXPECT_EQ(max_of(x.data(), n), max);
  }
  const float with_nan[] = {1.0f, NAN, 3.0f};
  EXPECT_EQ(max_of(with_nan, 3), 3.0f);
}

}  // namespace
}  // namespace fp8::kernels
