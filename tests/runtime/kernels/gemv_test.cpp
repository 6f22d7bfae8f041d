// SPDX-License-Identifier: Apache-2.0
// Products of a few bf16 rows: the documented order of sums, to the bit on every level, and its distance from exact
// sums; odd sizes, rows apart with NaN between them, memory that ends where the operands do.
#include "fp8/runtime/kernels/gemv.h"

#include <gtest/gtest.h>

#include <random>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

constexpr std::uint16_t kNaN = 0x7FC0;

struct Problem {
  std::int64_t m, n, k, a_gap, w_gap, y_gap;
  bool has_bias;
  test::GuardedBuffer<std::uint16_t> a, w, bias, y;

  Problem(std::int64_t m, std::int64_t n, std::int64_t k, bool has_bias, std::int64_t gap)
      : m(m),
        n(n),
        k(k),
        a_gap(gap),
        w_gap(gap),
        y_gap(gap),
        has_bias(has_bias),
        a(rows(m, k)),
        w(rows(n, k)),
        bias(static_cast<std::size_t>(n)),
        y(rows(m, n)) {
    std::mt19937 random(static_cast<unsigned>(m * 1000 + n * 10 + k));
    std::normal_distribution<float> normal;
    fill(a.data(), m, k, [&] { return f32_to_bf16(normal(random)); });
    fill(w.data(), n, k, [&] { return f32_to_bf16(normal(random)); });
    for (std::int64_t i = 0; i < n; ++i) bias.data()[i] = f32_to_bf16(normal(random));
    fill(y.data(), m, n, [] { return kNaN; });
  }

  GemvArgs args() {
    GemvArgs out;
    out.m = m, out.n = n, out.k = k;
    out.a = a.data(), out.a_stride = k + a_gap;
    out.w = w.data(), out.w_stride = k + w_gap;
    out.bias = has_bias ? bias.data() : nullptr;
    out.y = y.data(), out.y_stride = n + y_gap;
    return out;
  }
  float at_a(std::int64_t i, std::int64_t j) { return bf16_to_f32(a.data()[i * (k + a_gap) + j]); }
  float at_w(std::int64_t i, std::int64_t j) { return bf16_to_f32(w.data()[i * (k + w_gap) + j]); }
  std::uint16_t at_y(std::int64_t i, std::int64_t j) { return y.data()[i * (n + y_gap) + j]; }

 private:
  /// The last row ends where the memory does: no gap follows it.
  std::size_t rows(std::int64_t count, std::int64_t width) const {
    return static_cast<std::size_t>(count == 0 ? 0 : (count - 1) * (width + a_gap) + width);
  }
  template <class Next>
  void fill(std::uint16_t* to, std::int64_t count, std::int64_t width, Next next) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j < width; ++j) to[i * (width + a_gap) + j] = next();
      for (std::int64_t j = width; i + 1 < count && j < width + a_gap; ++j) to[i * (width + a_gap) + j] = kNaN;
    }
  }
};

/// gemv.h's formula.
std::uint16_t formula(Problem& p, std::int64_t i, std::int64_t row) {
  float sum[32] = {}, s[16];
  for (std::int64_t k = 0; k < p.k; ++k) sum[k % 32] = std::fma(p.at_a(i, k), p.at_w(row, k), sum[k % 32]);
  for (int j = 0; j < 16; ++j) s[j] = sum[2 * j] + sum[2 * j + 1];
  for (int step : {8, 4, 2, 1})
    for (int j = 0; j < step; ++j) s[j] = s[j] + s[j + step];
  return f32_to_bf16(p.has_bias ? s[0] + bf16_to_f32(p.bias.data()[row]) : s[0]);
}

TEST(Gemv, FollowsItsFormulaOnEveryLevel) {
  for (SimdLevel level : test::levels()) {
    const ScopedSimdLevel scoped(level);
    for (std::int64_t m = 1; m <= kMostGemvRows; ++m) {
      for (std::int64_t n : {1, 3, 4, 5, 67, 130}) {
        for (std::int64_t k : {0, 1, 15, 31, 32, 33, 64, 127, 1000}) {
          const std::int64_t gap = (n + k) % 3;
          Problem p(m, n, k, n % 2 == 1, gap);
          gemv(p.args());
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j)
              ASSERT_EQ(p.at_y(i, j), formula(p, i, j))
                  << name_of(level) << " m " << m << " n " << n << " k " << k << " at " << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST(Gemv, IsWithinItsBoundOfTheExactSum) {
  Problem p(2, 40, 5000, false, 0);
  gemv(p.args());
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double exact = 0, magnitude = 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        const double product = static_cast<double>(p.at_a(i, k)) * static_cast<double>(p.at_w(j, k));
        exact += product;
        magnitude += std::fabs(product);
      }
      const double sums = (static_cast<double>(p.k) / 32 + 6) * std::ldexp(magnitude, -24);
      const double y = static_cast<double>(bf16_to_f32(p.at_y(i, j)));
      EXPECT_LE(std::fabs(y - exact), sums + std::ldexp(std::fabs(exact) + sums, -8));
    }
  }
}

TEST(Gemv, ThreadsAndOtherRowsChangeNoBit) {
  Problem one(1, 3000, 256, true, 0), two(2, 3000, 256, true, 0);
  std::memcpy(two.w.data(), one.w.data(), 3000 * 256 * sizeof(std::uint16_t));
  std::memcpy(two.bias.data(), one.bias.data(), 3000 * sizeof(std::uint16_t));
  std::memcpy(two.a.data() + 256, one.a.data(), 256 * sizeof(std::uint16_t));
  const test::Threads single(1);
  gemv(one.args());
  const test::Threads three(3);
  gemv(two.args());
  for (std::int64_t j = 0; j < 3000; ++j) ASSERT_EQ(one.at_y(0, j), two.at_y(1, j)) << j;
}

TEST(Gemv, ProductsOfOneInputFollowTheFormulaEach) {
  for (SimdLevel level : test::levels()) {
    const ScopedSimdLevel scoped(level);
    for (const int threads : {1, 3}) {
      const test::Threads pool(threads);
      Problem wide(2, 130, 65, true, 2), none(2, 0, 65, false, 2), narrow(2, 3, 65, false, 2), last(2, 64, 65, true, 2);
      Problem* all[] = {&wide, &none, &narrow, &last};
      std::vector<GemvArgs> products;
      for (Problem* p : all) {
        std::copy_n(wide.a.data(), 65 + 2 + 65, p->a.data());  // for the formula
        products.push_back(p->args());
        products.back().a = wide.a.data();
      }
      gemv_together(products);
      for (Problem* p : all)
        for (std::int64_t i = 0; i < p->m; ++i)
          for (std::int64_t j = 0; j < p->n; ++j)
            ASSERT_EQ(p->at_y(i, j), formula(*p, i, j)) << name_of(level) << " n " << p->n << " at " << i << ", " << j;
      products[2].k = 64;
      EXPECT_THROW(gemv_together(products), std::invalid_argument);
    }
  }
}

TEST(Gemv, NanAndInfinityGoWhereArithmeticTakesThem) {
  for (SimdLevel level : test::levels()) {
    const ScopedSimdLevel scoped(level);
    Problem p(1, 8, 70, false, 0);
    p.w.data()[3 * 70 + 69] = 0x7F80;  // infinity
    p.w.data()[5 * 70] = kNaN;
    p.a.data()[69] = f32_to_bf16(-1.0f);
    gemv(p.args());
    for (std::int64_t j = 0; j < 8; ++j) {
      const float y = bf16_to_f32(p.at_y(0, j));
      if (j == 3)
        EXPECT_EQ(y, -std::numeric_limits<float>::infinity());
      else if (j == 5)
        EXPECT_TRUE(std::isnan(y));
      else
        EXPECT_TRUE(std::isfinite(y));
    }
  }
}

TEST(Gemv, RefusesWhatItCannotIndex) {
  Problem p(1, 4, 8, false, 0);
  test::expect_refused(
      gemv, p.args(), [](auto& args) { args.m = kMostGemvRows + 1; }, [](auto& args) { args.m = -1; },
      [](auto& args) { args.w_stride = 7; }, [](auto& args) { args.m = 2, args.a_stride = 7, args.y_stride = 4; },
      [](auto& args) { args.w = nullptr; }, [](auto& args) { args.y = nullptr; });
}

}  // namespace
}  // namespace fp8::kernels
