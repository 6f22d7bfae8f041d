// SPDX-License-Identifier: Apache-2.0
// Products of a few bf16 rows: the documented order of sums, to the bit on every level, and its distance from exact
// sums; odd sizes, rows apart with NaN between them, memory that ends where the operands do.

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm.h"
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

/// gemv()'s formula.
std::uint16_t formula(Problem& p, std::int64_t i, std::int64_t row) {
  float sum[32] = {}, s[16];
  for (std::int64_t k = 0; k < p.k; ++k) sum[k % 32] = std::fma(p.at_a(i, k), p.at_w(row, k), sum[k % 32]);
  for (int j = 0; j < 16; ++j) s[j] = sum[2 * j] + sum[2 * j + 1];
  for (int step : {8, 4, 2, 1})
    for (int j = 0; j < step; ++j) s[j] = s[j] + s[j + step];
  return f32_to_bf16(p.has_bias ? s[0] + bf16_to_f32(p.bias.data()[row]) : s[0]);
}

TEST(Gemv, FollowsItsFormulaOnEveryLevel) {
  for (const SimdLevel level : every_level())
    for (std::int64_t m = 1; m <= kMostGemvRows; ++m)
      for (std::int64_t n : {1, 3, 4, 5, 67, 130})
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

TEST(Gemv, IsWithinItsBoundOfTheExactSum) {
  Problem p(2, 40, 5000, false, 0);
  gemv(p.args());
  for (std::int64_t i = 0; i < p.m; ++i)
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

TEST(Gemv, ThreadsAndOtherRowsChangeNoBit) {
  Problem one(1, 3000, 256, true, 0), two(2, 3000, 256, true, 0);
  std::memcpy(two.w.data(), one.w.data(), 3000 * 256 * sizeof(std::uint16_t));
  std::memcpy(two.bias.data(), one.bias.data(), 3000 * sizeof(std::uint16_t));
  std::memcpy(two.a.data() + 256, one.a.data(), 256 * sizeof(std::uint16_t));
  const Threads single(1);
  gemv(one.args());
  const Threads three(3);
  gemv(two.args());
  for (std::int64_t j = 0; j < 3000; ++j) ASSERT_EQ(one.at_y(0, j), two.at_y(1, j)) << j;
}

TEST(Gemv, ProductsOfOneInputFollowTheFormulaEach) {
  for (const SimdLevel level : every_level())
    for (const int threads : {1, 3}) {
      const Threads pool(threads);
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

TEST(Gemv, NanAndInfinityGoWhereArithmeticTakesThem) {
  for (const SimdLevel level : every_level()) {
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
        EXPECT_TRUE(std::isfinite(y)) << name_of(level);
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

// f32 products against f64 sums and against the one chain of sums they promise, on every level; exponentials against
// std::exp in f64 over all exponents.

/// One chain in ascending k, each product and sum rounded.
std::vector<float> chain(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k,
                         std::vector<float> c) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      volatile float sum = c[static_cast<std::size_t>(i * n + j)];
      for (std::int64_t p = 0; p < k; ++p) {
        volatile float product =
            a.data[i * a.row_stride + p * a.col_stride] * b.data[p * b.row_stride + j * b.col_stride];
        sum = sum + product;
      }
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  return c;
}

TEST(Multiply, IsOneChainOfSumsOnEveryLevel) {
  const std::int64_t sizes[][3] = {{1, 1, 1},    {5, 7, 3},    {6, 32, 64}, {13, 33, 300},
                                   {7, 65, 513}, {64, 20, 17}, {3, 4, 0}};
  for (const auto& [m, n, k] : sizes) {
    const auto a = normal(static_cast<std::size_t>(m * k + 1), 1), b = normal(static_cast<std::size_t>(n * k + 1), 2);
    for (const bool a_turned : {false, true})
      for (const bool b_turned : {false, true}) {
        const F32View av{a.data(), a_turned ? 1 : k, a_turned ? m : 1},
            bv{b.data(), b_turned ? 1 : n, b_turned ? k : 1};
        const std::vector<float> start = normal(static_cast<std::size_t>(m * n), 3), zero(start.size(), 0.0f);
        for (const SimdLevel level : every_level()) {
          std::vector<float> c(start.size(), std::numeric_limits<float>::quiet_NaN()), added = start;
          multiply(av, bv, m, n, k, c.data(), n, false);
          multiply(av, bv, m, n, k, added.data(), n, true);
          EXPECT_EQ(c, chain(av, bv, m, n, k, zero)) << name_of(level) << " " << m << " " << n << " " << k;
          EXPECT_EQ(added, chain(av, bv, m, n, k, start)) << name_of(level);
        }
      }
  }
}

TEST(Multiply, LeavesWhatLiesBetweenTheRowsOfC) {
  const auto a = normal(6 * 8, 1), b = normal(8 * 5, 2);
  std::vector<float> c(6 * 9, 42.0f);
  multiply({a.data(), 8, 1}, {b.data(), 5, 1}, 6, 5, 8, c.data(), 9, false);
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 9; ++j) EXPECT_EQ(c[static_cast<std::size_t>(i * 9 + j)] == 42.0f, j >= 5);
}

TEST(ExpShifted, IsCloseToTheRealOneEverywhere) {
  std::vector<float> x;
  for (float v = -104.0f; v < 89.0f; v += 0.00317f) x.push_back(v);
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, -87.33f, -103.9f, 88.72f, 0.34657f, -0.34658f}) x.push_back(v);
  for (const SimdLevel level : every_level())
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

TEST(ExpShifted, SpecialValuesAndEveryLength) {
  for (const SimdLevel level : every_level()) {
    for (std::int64_t n = 0; n < 40; ++n) {
      std::vector<float> x(static_cast<std::size_t>(n) + 1, 1.0f);
      exp_shifted(x.data(), n, 1.0f);
      for (std::int64_t i = 0; i <= n; ++i)
        EXPECT_EQ(x[static_cast<std::size_t>(i)], 1.0f);  // e^0, and one not touched
    }
    std::vector<float> x = {-INFINITY, INFINITY, NAN, -1e30f, 1e30f, -150.0f};
    exp_shifted(x.data(), 6, 0.0f);
    EXPECT_EQ(x[0], 0.0f) << name_of(level);
    EXPECT_EQ(x[1], INFINITY);
    EXPECT_TRUE(std::isnan(x[2]));
    EXPECT_EQ(x[3], 0.0f);
    EXPECT_EQ(x[4], INFINITY);
    EXPECT_EQ(x[5], 0.0f);
  }
}

TEST(SumAndMax, EveryLength) {
  for (std::int64_t n = 0; n < 100; ++n) {
    const auto x = normal(static_cast<std::size_t>(n), static_cast<unsigned>(n));
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
