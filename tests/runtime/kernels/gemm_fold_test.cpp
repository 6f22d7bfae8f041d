// SPDX-License-Identifier: Apache-2.0
// gemm at levels amx and avx512bf16 with GemmArgs::power_of_two_scales: sums over all of K of the values that gemm.h
// names. At level amx each output is the manual's chain of tdpbf16ps (amx_reference.h), to the bit; avx512bf16 is held
// to the bound of f32 sums. All other levels, and what these do not fold, are as without.

#include "runtime/kernels/amx_reference.h"
#include "runtime/kernels/gemm_problem.h"

namespace fp8::kernels {
namespace {

using test::Problem;

constexpr SimdLevel kFolding[] = {SimdLevel::avx512bf16, SimdLevel::amx};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct GemmFold : testing::Test {
  void SetUp() override {
    if (best_scoped_level() < SimdLevel::amx) GTEST_SKIP() << "level amx needs AVX-512 with VBMI and BF16";
  }
};

/// A product with scales of groups, and its outputs.
struct Grouped {
  Problem p;
  std::int64_t group, block_rows, first_row;
  std::vector<float> a_scale, w_scale;  // a_scale empty: none

  Grouped(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns, Storage a_type, Format w_format,
          std::int64_t rows = 1)
      : group(columns), block_rows(rows), first_row(rows > 1 ? rows / 2 : 0) {
    p.m = m, p.n = n, p.k = k, p.a_type = a_type, p.w_format = w_format;
    p.has_bias = n % 2 == 1;
    p.fill(static_cast<unsigned>(m * 1000 + n * 10 + k));
    std::mt19937 random(static_cast<unsigned>(n + k));
    const auto fill = [&](std::vector<float>& scales, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) scales.push_back(std::ldexp(1.0f, static_cast<int>(random() % 41) - 25));
    };
    if (a_type != Storage::BF16) fill(a_scale, m * groups());
    fill(w_scale, (first_row + n + rows - 1) / rows * groups());
  }
  std::int64_t groups() const { return (p.k + group - 1) / group; }
  const float* scales_of_row(std::int64_t r) const { return a_scale.data() + r * groups(); }
  const float* scales_of_channel(std::int64_t c) const {
    return w_scale.data() + (first_row + c) / block_rows * groups();
  }

  GemmArgs args(Layout layout, std::vector<std::uint8_t>& y) const {
    GemmArgs args = p.args(layout, y);
    args.blocks.cols = group, args.blocks.rows = block_rows, args.blocks.first_row = first_row;
    args.a_scale_inv = a_scale.empty() ? nullptr : a_scale.data();
    args.w_scale_inv = w_scale.data();
    args.power_of_two_scales = true;
    return args;
  }
  std::vector<std::uint8_t> run(Layout layout, bool power_of_two = true) const {
    std::vector<std::uint8_t> y = p.y0;
    GemmArgs all = args(layout, y);
    all.power_of_two_scales = power_of_two;
    gemm(all);
    return y;
  }

  /// NaN before all others.
  float largest(const float* scales) const {
    float most = 0;
    for (std::int64_t g = 0; g < groups(); ++g)
      if (std::isnan(scales[g]) || scales[g] > most) most = scales[g];
    return most;
  }
  /// A code's value by its scale as a part of the largest.
  std::uint16_t value(double value, float scale, float most) const {
    if (!std::isfinite(value) || value == 0) return test::bf16_bits(value);
    if (std::isfinite(most) && (scale == 0 || static_cast<double>(scale) / most < 0x1p-96)) return 0;
    if (!std::isfinite(most) && std::isfinite(scale))
      return scale < 0x1p32f ? 0 : test::bf16_bits(value * scale / 0x1p128);
    return test::bf16_bits(std::isfinite(most) ? value * (static_cast<double>(scale) / most) : value);
  }
  /// The values of one output's products, and the largest scales.
  struct Factors {
    std::vector<std::uint16_t> a, b;
    float a_most, w_most;
  };
  Factors factors(std::int64_t r, std::int64_t c) const {
    const std::vector<float> ones(static_cast<std::size_t>(groups()), 1.0f);
    const float *a_scales = a_scale.empty() ? ones.data() : scales_of_row(r), *w_scales = scales_of_channel(c);
    Factors f{{}, {}, largest(a_scales), largest(w_scales)};
    for (std::int64_t k = 0; k < p.k; ++k) {
      f.a.push_back(value(p.a_at(r, k), a_scales[k / group], f.a_most));
      f.b.push_back(value(p.w_at(c, k), w_scales[k / group], f.w_most));
    }
    return f;
  }
  float bias(std::int64_t c) const {
    return p.has_bias ? static_cast<float>(test::load(p.bias, p.bias_type, c)) : 0.0f;
  }
  float expected(Factors f, std::int64_t c) const {
    f.a.resize(static_cast<std::size_t>((p.k + 31) / 32 * 32)), f.b.resize(f.a.size());
    float sum = 0;
    for (std::size_t k = 0; k < f.a.size(); k += 32)
      sum = test::manual_dot(sum, std::span(f.a).subspan(k, 32), std::span(f.b).subspan(k, 32));
    const float y = sum * (f.a_most * f.w_most);
    return p.has_bias ? y + bias(c) : y;
  }
  /// Within the bound of f32 sums that flush what is below 2^-126, or as infinite or no number as the sum in f64.
  bool near(float got, const Factors& f, std::int64_t c) const {
    double sum = 0, size = 0;
    for (std::size_t k = 0; k < f.a.size(); ++k) {
      const double product = static_cast<double>(test::f32_of_bf16(f.a[k])) * test::f32_of_bf16(f.b[k]);
      sum += product, size += std::fabs(product);
    }
    const double scale = f.a_most * f.w_most, exact = sum * scale + bias(c);
    if (!std::isfinite(static_cast<float>(exact))) return test::same_float(got, static_cast<float>(exact));
    const double of_sums = static_cast<double>(p.k) * (2 * 0x1p-24 * size + 0x1p-126) * scale;
    return std::fabs(got - exact) <= of_sums + 0x1p-22 * (std::fabs(exact) + std::fabs(bias(c))) + 0x1p-149;
  }

  void check(const std::string& what) const {
    std::vector<std::vector<std::uint8_t>> found;  // of each level, packed and row-major
    for (const SimdLevel at : kFolding) {
      const ScopedSimdLevel level(at);
      found.push_back(run(Layout::packed));
      EXPECT_EQ(run(Layout::row_major), found.back()) << name_of(at) << ", " << what;
    }
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      const Factors f = factors(i / p.n, i % p.n);
      const float to_the_bit = expected(f, i % p.n);
      const auto got = [&](std::size_t level) {
        return static_cast<float>(test::load(found[level], FloatType::F32, i));
      };
      ASSERT_TRUE(near(got(0), f, i % p.n)) << what << " at " << i << ": " << got(0) << ", expected " << to_the_bit;
      ASSERT_TRUE(test::same_float(got(1), to_the_bit))
          << what << " at level amx, " << i << ": " << got(1) << ", expected " << to_the_bit;
    }
  }
};

TEST_F(GemmFold, SumsOnOverGroups) {
  for (const std::int64_t m : {1, 2, 3, 16, 37, 70})
    for (const std::int64_t n : {5, 16, 40})
      for (const std::int64_t k : {20, 64, 130, 1100})
        for (const std::int64_t group : {32, 96, 128, 1024, 2048}) {
          const Storage type = m % 2 ? Storage::E4M3 : n % 2 ? Storage::BF16 : Storage::E5M2;
          const Grouped g(m, n, k, group, type, k % 4 ? Format::E5M2 : Format::E4M3, n == 16 ? 128 : n == 40 ? 7 : 1);
          g.check(std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
                  std::to_string(group));
          if (HasFatalFailure()) return;
        }
}

// 1 and 2 rows have kernels of their own.
TEST_F(GemmFold, ScalesOfAllSizes) {
  const float smallest = 0x1p-127f, largest = 0x1p127f, nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {1, 0x1p-96f, 0x1p-97f, 0x1p-95f},  // the last that counts, and the first that does not
      {0x1p-31f, smallest, 0x1p-126f, 0x1p-125f},
      {smallest, smallest, smallest, smallest},
      {smallest, 0x1p-126f, smallest, 0x1p-120f},
      {largest, 0x1p31f, 0x1p30f, 0x1p126f},
      {0, 1, 0, 0x1p-96f},
      {0, 0, 0, 0},
      {nan, 1, 0x1p-100f, 1},
      {1, 0x1p100f, 1, nan},
      {kInfinity, 0x1p32f, 0x1p31f, 1},
      {0x1p-60f, 0x1p-20f, 1, 0x1p20f},
  };
  const auto size = static_cast<std::int64_t>(rows.size());
  for (const std::int64_t m : {size, std::int64_t{1}, std::int64_t{2}})
    for (const Format format : {Format::E4M3, Format::E5M2})
      for (std::int64_t first = 0; first < (m == size ? 1 : size - m); ++first) {
        Grouped of_a(m, 24, 4 * 32 - 3, 32, format == Format::E4M3 ? Storage::E4M3 : Storage::E5M2, format);
        for (std::int64_t i = 0; i < m * 4; ++i)
          of_a.a_scale[static_cast<std::size_t>(i)] =
              rows[static_cast<std::size_t>(first + i / 4)][static_cast<std::size_t>(i % 4)];
        of_a.check("of a, from " + std::to_string(first));
        Grouped of_w(m, size, 4 * 32 - 3, 32, format == Format::E4M3 ? Storage::E5M2 : Storage::BF16, format);
        for (std::int64_t i = 0; i < size * 4; ++i)
          of_w.w_scale[static_cast<std::size_t>(i)] =
              rows[static_cast<std::size_t>(i / 4)][static_cast<std::size_t>(i % 4)];
        of_w.check("of w, m " + std::to_string(m));
        if (HasFatalFailure()) return;
      }
}

TEST_F(GemmFold, CodesThatAreNoNumbersStaySo) {
  for (const std::int64_t m : {1, 3, 20}) {
    Grouped g(m, 40, 200, 32, Storage::E5M2, Format::E4M3);
    g.p.a[70] = 0x7C;             // infinity, in a row
    g.p.w[3 * 200 + 40] = 0x7F;   // NaN
    g.p.w[5 * 200 + 199] = 0xFF;  // NaN
    g.p.w[6 * 200 + 70] = 0x80;   // -0 by that infinity
    g.p.pack();
    g.check("m " + std::to_string(m));
    for (const SimdLevel at : kFolding) {
      const ScopedSimdLevel level(at);
      const std::vector<std::uint8_t> y = g.run(Layout::packed);
      EXPECT_TRUE(std::isinf(test::load(y, FloatType::F32, 0)));
      for (const std::int64_t channel : {3, 5, 6}) EXPECT_TRUE(std::isnan(test::load(y, FloatType::F32, channel)));
    }
  }
}

// Scales within 2^30 of each other: exact products, so both ways stay within the bound of f32 sums.
TEST_F(GemmFold, IsNearThePlainSums) {
  for (const SimdLevel at : kFolding) {
    const ScopedSimdLevel level(at);
    const Grouped g(33, 50, 1100, 32, Storage::E4M3, Format::E4M3);
    const std::vector<std::uint8_t> y = g.run(Layout::packed);
    for (std::int64_t r = 0; r < g.p.m; ++r)
      for (std::int64_t c = 0; c < g.p.n; ++c) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < g.p.k; ++k) {
          const double product = g.p.a_at(r, k) * g.p.w_at(c, k) *
                                 static_cast<double>(g.scales_of_row(r)[k / g.group]) *
                                 static_cast<double>(g.scales_of_channel(c)[k / g.group]);
          sum += product, size += std::fabs(product);
        }
        ASSERT_LE(std::fabs(test::load(y, FloatType::F32, r * g.p.n + c) - sum), 2 * 1100 * 0x1p-24 * size);
      }
  }
}

// Scales of BF16 activations, groups that are no whole tiles, activations in f32, and all other levels.
TEST_F(GemmFold, WhatIsNotFoldedIsAsWithout) {
  for (const SimdLevel at : levels()) {
    const ScopedSimdLevel level(at);
    Grouped scaled(20, 40, 200, 32, Storage::BF16, Format::E4M3);
    scaled.a_scale.assign(static_cast<std::size_t>(20 * scaled.groups()), 0.5f);
    const Grouped odd(20, 40, 200, 36, Storage::E4M3, Format::E4M3), f32(20, 40, 200, 32, Storage::F32, Format::E4M3),
        folded(20, 40, 200, 64, Storage::E4M3, Format::E4M3);  // of 32, one tile's, the sums are the same
    for (const Grouped& g : {scaled, odd, f32})
      EXPECT_EQ(g.run(Layout::packed, true), g.run(Layout::packed, false)) << name_of(at);
    EXPECT_EQ(folded.run(Layout::packed, true) == folded.run(Layout::packed, false), at < SimdLevel::avx512bf16)
        << name_of(at);
  }
}

TEST_F(GemmFold, DependsOnNeitherRowsNorThreadsNorNeighbours) {
  for (const SimdLevel at : kFolding) {
    const ScopedSimdLevel level(at);
    Grouped g(600, 40, 96, 32, Storage::E4M3, Format::E4M3);
    const Threads two(2);
    const std::vector<std::uint8_t> all = g.run(Layout::row_major);
    const Threads single(1);
    EXPECT_EQ(g.run(Layout::packed), all);
    for (const std::int64_t row : {0, 17, 511, 512, 599}) {
      std::vector<std::uint8_t> one(static_cast<std::size_t>(g.p.n * 4));
      GemmArgs args = g.args(Layout::packed, one);
      args.m = 1;
      args.a = g.p.a.data() + row * g.p.k, args.a_scale_inv = g.scales_of_row(row);
      gemm(args);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * g.p.n * 4)) << row;
    }
  }
}

TEST_F(GemmFold, ProductsTogetherHaveTheBitsOfEach) {
  for (const SimdLevel at : kFolding) {
    const ScopedSimdLevel level(at);
    for (const std::int64_t m : {1, 40}) {
      const Grouped first(m, 37, 200, 32, Storage::E4M3, Format::E4M3, 5);
      Grouped second(m, 64, 200, 32, Storage::E4M3, Format::E5M2);
      second.p.a = first.p.a, second.a_scale = first.a_scale;
      std::vector<std::uint8_t> y0 = first.p.y0, y1 = second.p.y0;
      GemmArgs products[] = {first.args(Layout::packed, y0), second.args(Layout::row_major, y1)};
      products[1].a = products[0].a, products[1].a_scale_inv = products[0].a_scale_inv;
      gemm_together(products);
      EXPECT_EQ(y0, first.run(Layout::packed));
      EXPECT_EQ(y1, second.run(Layout::packed));
      products[1].power_of_two_scales = false;
      EXPECT_THROW(gemm_together(products), std::invalid_argument);
      products[1].power_of_two_scales = true, products[1].a_scale_inv = second.a_scale.data();
      EXPECT_THROW(gemm_together(products), std::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace fp8::kernels
