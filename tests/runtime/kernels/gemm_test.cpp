// SPDX-License-Identifier: Apache-2.0
// gemm against sums in f64 (gemm_problem.h says how close), on every level that this machine runs, and what its header
// promises beyond that: the same bits for every layout, thread count and number of rows.
#include "fp8/runtime/kernels/gemm.h"

#include "runtime/kernels/gemm_problem.h"

namespace fp8::kernels {
namespace {

using test::kNan;
using test::load;
using test::Problem;
using test::round_to;
using test::store;
using test::value_of;

constexpr std::int64_t kRows[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33};
constexpr std::int64_t kOdd[] = {1, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 130};

class GemmLevel : public testing::TestWithParam<SimdLevel> {
  const ScopedSimdLevel level_{GetParam()};
};

// Every m with every n and k; types, scales, gaps and formats take turns so that each meets many shapes.
TEST_P(GemmLevel, OddSizesMatchF64) {
  unsigned turn = 0;
  for (const std::int64_t m : kRows)
    for (const std::int64_t n : kOdd)
      for (const std::int64_t k : kOdd) {
        Problem p;
        p.m = m, p.n = n, p.k = k;
        p.a_type = static_cast<Storage>(turn % 5);
        p.w_format = turn % 3 == 2 ? Format::E5M2 : Format::E4M3;
        p.y_type = static_cast<FloatType>(turn / 5 % 3);
        p.bias_type = static_cast<FloatType>(turn / 2 % 3);
        p.has_bias = turn % 4 < 2;
        p.accumulate = turn % 7 < 3;
        p.a_rows = turn % 2, p.w_channels = turn / 3 % 2;
        p.a_gap = turn % 4, p.y_gap = turn / 4 % 3;
        p.fill(++turn);
        if (p.y_type == FloatType::F16)  // keep the sums within f16
          for (float& s : p.a_scale) s *= 0x1p-12f;
        const std::string what =
            std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " turn " + std::to_string(turn);
        const auto packed = p.run(Layout::packed), row_major = p.run(Layout::row_major);
        p.check(packed, what + " packed");
        if (HasFatalFailure()) return;
        ASSERT_EQ(packed, row_major) << what << ": layouts differ";
      }
}

// Several ranges of k, several chunks of the weight, panels with a left-over block.
TEST_P(GemmLevel, LongSumsMatchF64) {
  for (const std::int64_t m : {1, 3, 6, 16, 47, 260})
    for (const auto a_type : {Storage::F32, Storage::BF16, Storage::E5M2}) {
      Problem p;
      p.m = m, p.n = 16 * 7 + 3, p.k = 1283;
      p.a_type = a_type;
      p.w_channels = true;
      p.fill(static_cast<unsigned>(m));
      const auto packed = p.run(Layout::packed);
      p.check(packed, "m " + std::to_string(m));
      if (HasFatalFailure()) return;
      EXPECT_EQ(packed, p.run(Layout::row_major));
    }
}

// One hot activation picks one weight per channel: the output is the weight's value, for all codes of both formats.
TEST_P(GemmLevel, All256CodesAreExact) {
  for (const Format format : {Format::E4M3, Format::E5M2})
    for (const auto a_type : {Storage::F32, Storage::BF16, Storage::E4M3})
      for (const std::int64_t m : {1, 4, 7, 40}) {
        Problem p;
        p.m = m, p.n = 256, p.k = 9, p.a_type = a_type, p.w_format = format;
        p.fill(5);
        p.a_scale = p.w_scale = {1.0f};
        std::fill(p.a.begin(), p.a.end(), std::uint8_t{0});
        std::fill(p.w.begin(), p.w.end(), std::uint8_t{0});
        for (std::int64_t c = 0; c < 256; ++c)
          p.w[static_cast<std::size_t>(c * 9 + c % 9)] = static_cast<std::uint8_t>(c);
        for (std::int64_t r = 0; r < m; ++r)
          for (std::int64_t i = 0; i < 9; ++i) {
            if (a_type == Storage::E4M3)
              p.a[static_cast<std::size_t>(r * 9 + i)] = 0x38;
            else
              store(p.a, a_type == Storage::F32 ? FloatType::F32 : FloatType::BF16, r * 9 + i, 1.0);
          }
        p.pack();
        for (const Layout layout : {Layout::packed, Layout::row_major}) {
          const auto y = p.run(layout);
          for (std::int64_t r = 0; r < m; ++r)
            for (int c = 0; c < 256; ++c) {
              const double expected = value_of(static_cast<std::uint8_t>(c), format),
                           got = load(y, FloatType::F32, r * 256 + c);
              if (std::isnan(expected))
                ASSERT_TRUE(std::isnan(got)) << name_of(format) << " code " << c << " m " << m;
              else
                ASSERT_EQ(got, expected) << name_of(format) << " code " << c << " m " << m;
            }
        }
      }
}

// One NaN weight spoils its channel, one NaN activation its row, and nothing else.
TEST_P(GemmLevel, NanReachesItsOutputsOnly) {
  for (const Format format : {Format::E4M3, Format::E5M2})
    for (const auto a_type : {Storage::F32, Storage::BF16, Storage::F16, Storage::E4M3, Storage::E5M2})
      for (const std::int64_t m : {1, 3, 9, 35}) {
        Problem p;
        p.m = m, p.n = 37, p.k = 700, p.a_type = a_type, p.w_format = format;
        p.fill(11);
        const std::int64_t channel = 21, row = m / 2;
        p.w[static_cast<std::size_t>(channel * p.k + 611)] = 0xFF;
        p.pack();
        if (m > 1)
          for (int i = 0; i < p.a_size(); ++i) p.a[static_cast<std::size_t>((row * p.k + 333) * p.a_size() + i)] = 0xFF;
        for (const Layout layout : {Layout::packed, Layout::row_major}) {
          const auto y = p.run(layout);
          for (std::int64_t r = 0; r < m; ++r)
            for (std::int64_t c = 0; c < p.n; ++c)
              ASSERT_EQ(std::isnan(load(y, FloatType::F32, r * p.n + c)), c == channel || (m > 1 && r == row))
                  << name_of(format) << " m " << m << " at " << r << "," << c;
        }
      }
}

TEST_P(GemmLevel, ThreadsDoNotChangeABit) {
  for (const std::int64_t m : {1, 4, 16, 130})
    for (const std::int64_t n : {16, 50, 777})
      for (const Layout layout : {Layout::packed, Layout::row_major}) {
        Problem p;
        p.m = m, p.n = n, p.k = 517;
        p.a_type = Storage::BF16, p.y_type = FloatType::BF16, p.a_rows = p.w_channels = true;
        p.fill(static_cast<unsigned>(m + n));
        const Threads single(1);
        const auto one = p.run(layout);
        for (const int threads : {2, 3, 7}) {
          const Threads pool(threads);
          EXPECT_EQ(p.run(layout), one) << m << "x" << n << " with " << threads << " threads";
        }
      }
}

// A row's result does not depend on the rows that were computed with it (header: the order depends on k alone).
TEST_P(GemmLevel, ARowAloneGivesTheSameBits) {
  for (const auto a_type : {Storage::F32, Storage::BF16, Storage::E4M3}) {
    Problem p;
    p.m = 100, p.n = 70, p.k = 1029, p.a_type = a_type;
    p.fill(77);
    const auto all = p.run(Layout::packed);
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 16, 20, 33, 60})
      for (const Layout layout : {Layout::packed, Layout::row_major}) {
        std::vector<std::uint8_t> y(static_cast<std::size_t>(rows * p.n * 4), 0xFF);
        GemmArgs args = p.args(layout, y);
        args.m = rows;
        const std::int64_t row0 = 100 - rows;
        args.a = p.a.data() + row0 * p.k * p.a_size();
        gemm(args);
        const std::vector<std::uint8_t> expected(all.begin() + row0 * p.n * 4, all.end());
        EXPECT_EQ(y, expected) << rows << " rows";
      }
  }
}

// More rows than one chunk, and a K of which few rows fill a chunk.
TEST_P(GemmLevel, ManyRowsAndLongRows) {
  for (const auto& [m, n, k] : {std::tuple<int, int, int>{1030, 33, 21}, {40, 5, 140001}}) {
    Problem p;
    p.m = m, p.n = n, p.k = k, p.a_type = Storage::BF16, p.a_rows = true;
    p.fill(9);
    p.check(p.run(Layout::row_major), "row_major");
    if (HasFatalFailure()) return;
  }
}

// Scales that are powers of two only move the exponent; without scales and bias the sum itself comes out.
TEST_P(GemmLevel, PowerOfTwoScalesAreExact) {
  Problem p;
  p.m = 3, p.n = 40, p.k = 333;
  p.fill(4);
  std::vector<std::uint8_t> plain(p.y0.size()), scaled(p.y0.size());
  GemmArgs args = p.args(Layout::packed, plain);
  args.a_scale_inv = args.w_scale_inv = nullptr;
  gemm(args);
  p.a_scale = {0x1p-9f}, p.w_scale = {0x1p5f};
  gemm(p.args(Layout::packed, scaled));
  for (std::int64_t i = 0; i < p.m * p.n; ++i)
    EXPECT_EQ(load(scaled, FloatType::F32, i), load(plain, FloatType::F32, i) * 0x1p-4);
}

// y = round(sum * (a_scale_inv * w_scale_inv) + bias + y), each step in f32: the one rounding to y's type, ties to
// even.
TEST_P(GemmLevel, OutputsRoundOnceToNearestEven) {
  for (const FloatType type : {FloatType::BF16, FloatType::F16}) {
    const int bits = type == FloatType::BF16 ? 8 : 11;
    Problem p;
    p.m = 1, p.n = 20, p.k = 1, p.y_type = type, p.has_bias = true;
    p.fill(1);
    p.a_scale = p.w_scale = {1.0f};
    store(p.a, FloatType::F32, 0, 0.0);
    for (std::int64_t c = 0; c < 20; ++c)
      store(p.bias, FloatType::F32, c, 1.0 + std::ldexp(static_cast<double>(c), -bits - 1) * (c % 2 ? 1 : -0.5));
    const auto y = p.run(Layout::packed);
    for (std::int64_t c = 0; c < 20; ++c)
      EXPECT_EQ(load(y, type, c), round_to(load(p.bias, FloatType::F32, c), bits, -1000)) << name_of(type) << " " << c;
    // Overflow, infinity, NaN and the smallest subnormals.
    const double tiny = type == FloatType::BF16 ? 0x1p-133 : 0x1p-24;
    const double inputs[] = {3.4e38,      -std::numeric_limits<double>::infinity(), kNan, tiny, tiny * 2.5, tiny / 2,
                             -tiny * 0.75};
    const double inf = std::numeric_limits<double>::infinity();
    const double outputs[] = {inf, -inf, kNan, tiny, tiny * 2, 0.0, -tiny};
    for (int i = 0; i < 7; ++i) reinterpret_cast<float*>(p.bias.data())[i] = static_cast<float>(inputs[i]);
    const auto edge = p.run(Layout::packed);
    for (int i = 0; i < 7; ++i) {
      const double got = load(edge, type, i);
      if (std::isnan(outputs[i]))
        EXPECT_TRUE(std::isnan(got)) << i;
      else
        EXPECT_EQ(got, outputs[i]) << name_of(type) << " " << i;
    }
  }
}

TEST_P(GemmLevel, EmptySizes) {
  for (const auto& [m, n, k] : {std::tuple<int, int, int>{0, 4, 4}, {4, 0, 4}, {4, 20, 0}, {40, 20, 0}, {1, 1, 0}}) {
    Problem p;
    p.m = m, p.n = n, p.k = k, p.has_bias = true, p.accumulate = true;
    p.fill(8);
    p.check(p.run(Layout::packed), "packed");
    p.check(p.run(Layout::row_major), "row_major");
  }
}

/// a as Gaudi2 reads it.
double ieee_value(std::uint8_t code, Format format) {
  const int magnitude = code & 0x7F;
  if (format == Format::E5M2 || magnitude < 0x78) return value_of(code, format);
  const double v = magnitude == 0x78 ? std::numeric_limits<double>::infinity() : kNan;
  return code & 0x80 ? -v : v;
}

// An output that meets a code from 0x78 on is what arithmetic with infinity and NaN gives; all others keep their bits.
TEST_P(GemmLevel, OnGaudi2OutputsThatMeetInfinityOrNanShowItAndTheOthersKeepTheirBits) {
  for (const auto a_type : {Storage::E4M3, Storage::E5M2, Storage::BF16})
    for (const auto w_format : {Format::E4M3, Format::E5M2}) {
      Problem p;
      p.m = 9, p.n = 37, p.k = 130, p.a_type = a_type, p.w_format = w_format;
      p.has_bias = p.accumulate = p.a_rows = p.w_channels = true;
      p.a_gap = 3, p.y_gap = 2;
      p.fill(7);
      const auto tame = [](std::uint8_t& code) {
        if ((code & 0x7F) >= 0x78) code = 0x40;
      };
      if (a_type == Storage::E4M3)
        for (auto& code : p.a) tame(code);
      if (w_format == Format::E4M3)
        for (auto& code : p.w) tame(code);
      p.pack();
      const std::vector<std::uint8_t> plain = p.run(Layout::row_major);
      if (a_type == Storage::E4M3) {
        p.a[static_cast<std::size_t>(2 * p.a_stride() + 5)] = 0x78;    // infinity
        p.a[static_cast<std::size_t>(4 * p.a_stride() + 129)] = 0xFB;  // NaN
      }
      if (w_format == Format::E4M3) {
        p.w[static_cast<std::size_t>(3 * p.k + 5)] = 0xF8;  // -infinity
        p.w[static_cast<std::size_t>(36 * p.k)] = 0x7E;     // NaN (448 elsewhere)
        p.w[static_cast<std::size_t>(11 * p.k + 7)] = 0;    // 0 * infinity below
        p.w[static_cast<std::size_t>(11 * p.k + 5)] = 0;
      }
      p.pack();
      const auto a_at = [&](std::int64_t r, std::int64_t k) {
        return a_type == Storage::E4M3 ? ieee_value(p.a[static_cast<std::size_t>(r * p.a_stride() + k)], Format::E4M3)
                                       : p.a_at(r, k);
      };
      Problem zeroed = p;  // the reference of outputs whose weights were zeroed
      for (auto& code : zeroed.w) tame(code);
      if (a_type == Storage::E4M3)
        for (auto& code : zeroed.a) tame(code);
      const std::vector<std::uint8_t> finite = zeroed.run(Layout::row_major);
      for (const Layout layout : {Layout::row_major, Layout::packed}) {
        std::vector<std::uint8_t> y = p.y0;
        GemmArgs args = p.args(layout, y);
        args.dialect = Dialect::gaudi2;
        gemm(args);
        int special = 0;
        for (std::int64_t r = 0; r < p.m; ++r)
          for (std::int64_t c = 0; c < p.n; ++c) {
            double sum = 0;
            for (std::int64_t k = 0; k < p.k; ++k)
              sum += a_at(r, k) * ieee_value(p.w[static_cast<std::size_t>(c * p.k + k)], w_format);
            const std::int64_t at = r * p.y_stride() + c;
            const double got = load(y, p.y_type, at);
            if (std::isfinite(sum)) {
              ASSERT_EQ(got, load(finite, p.y_type, at)) << r << "," << c;
              continue;
            }
            ++special;
            ASSERT_TRUE(std::isnan(sum) ? std::isnan(got) : got == sum) << r << "," << c << ": " << got;
          }
        EXPECT_EQ(special, (a_type == Storage::E4M3 ? 2 * p.n : 0) + (w_format == Format::E4M3 ? 2 * p.m : 0) -
                               (a_type == Storage::E4M3 && w_format == Format::E4M3 ? 4 : 0));
      }
      if (a_type != Storage::E4M3 && w_format != Format::E4M3) {
        EXPECT_EQ(plain == finite, true);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, GemmLevel, testing::ValuesIn(levels()),
                         [](const auto& param) { return std::string(name_of(param.param)); });

// gemm with scales per block of W and per group of A's columns, against sums in f64: every level, odd sizes, ragged
// groups and blocks, weights that begin within a block, scales surrounded by NaN.

struct Blocks {
  std::int64_t group = 4, block_rows = 1, first_row = 0;
  std::vector<float> a, w;  // the scales, a NaN before and after
  bool has_a = true;

  std::int64_t groups(const Problem& p) const { return (p.k + group - 1) / group; }
  void fill(const Problem& p, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto scales = [&](std::vector<float>& s, std::int64_t count) {
      s.assign(static_cast<std::size_t>(count + 2), static_cast<float>(kNan));
      for (std::int64_t i = 0; i < count; ++i)
        s[static_cast<std::size_t>(i + 1)] = std::exp2(static_cast<float>(2 * normal(random)));
    };
    scales(a, p.m * groups(p));
    scales(w, (first_row + p.n + block_rows - 1) / block_rows * groups(p));
  }
  double a_at(const Problem& p, std::int64_t row, std::int64_t k) const {
    return has_a ? static_cast<double>(a[static_cast<std::size_t>(1 + row * groups(p) + k / group)]) : 1;
  }
  double w_at(const Problem& p, std::int64_t n, std::int64_t k) const {
    return static_cast<double>(w[static_cast<std::size_t>(1 + (first_row + n) / block_rows * groups(p) + k / group)]);
  }
  std::vector<std::uint8_t> run(const Problem& p, Layout layout) const {
    std::vector<std::uint8_t> y = p.y0;
    GemmArgs g = p.args(layout, y);
    g.blocks.cols = group, g.blocks.rows = block_rows, g.blocks.first_row = first_row;
    g.a_scale_inv = has_a ? a.data() + 1 : nullptr;
    g.w_scale_inv = w.data() + 1;
    gemm(g);
    return y;
  }
};

// Every product is summed with one rounding (vdpbf16ps: two per pair), each group's sum scaled and added with three
// more.
void check(const Problem& p, const Blocks& b, const std::vector<std::uint8_t>& y, const std::string& what) {
  for (std::int64_t r = 0; r < p.m; ++r)
    for (std::int64_t c = 0; c < p.n; ++c) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < p.k; ++i) {
        const double product = p.a_at(r, i) * p.w_at(c, i) * b.a_at(p, r, i) * b.w_at(p, c, i);
        sum += product;
        magnitude += std::fabs(product);
      }
      const std::int64_t at = r * p.y_stride() + c;
      const double bias = p.has_bias ? load(p.bias, p.bias_type, c) : 0,
                   old = p.accumulate ? load(p.y0, p.y_type, at) : 0;
      const double expected = sum + bias + old, got = load(y, p.y_type, at);
      const double half_ulp = p.y_type == FloatType::F32 ? 0x1p-24 : p.y_type == FloatType::BF16 ? 0x1p-8 : 0x1p-11;
      const double size = magnitude + std::fabs(bias) + std::fabs(old);
      const double tolerance =
          (2.0 * static_cast<double>(p.k) + 4.0 * static_cast<double>(b.groups(p)) + 8) * 0x1p-24 * size +
          std::fabs(expected) * half_ulp * 1.01;
      ASSERT_LE(std::fabs(got - expected), tolerance)
          << what << " at " << r << "," << c << ": got " << got << ", expected " << expected;
    }
}

class BlockGemm : public testing::TestWithParam<SimdLevel> {
  const ScopedSimdLevel level_{GetParam()};
};

TEST_P(BlockGemm, OddSizesMatchF64) {
  constexpr std::int64_t kGroups[] = {4, 8, 32, 64, 128, 4096}, kBlockRows[] = {1, 3, 16, 32, 128, 4096};
  unsigned turn = 0;
  for (const std::int64_t m : {0, 1, 2, 4, 5, 9, 17, 33})
    for (const std::int64_t n : {1, 5, 16, 17, 33, 64, 130})
      for (const std::int64_t k : {0, 1, 4, 31, 64, 130, 300}) {
        Problem p;
        p.m = m, p.n = n, p.k = k;
        p.a_type = static_cast<Storage>(turn % 5);
        p.w_format = turn % 7 == 2 ? Format::E5M2 : Format::E4M3;
        p.y_type = turn % 2 == 0 ? FloatType::F32 : FloatType::BF16;
        p.bias_type = static_cast<FloatType>(turn / 2 % 3);
        p.has_bias = turn % 4 < 2;
        p.accumulate = turn % 5 < 2;
        p.a_gap = turn % 3, p.y_gap = turn / 4 % 3;
        p.fill(++turn);
        Blocks b;
        b.group = kGroups[turn % 6], b.block_rows = kBlockRows[turn / 2 % 6];
        b.first_row = turn % 3 == 0 ? b.block_rows / 2 : 0;
        b.has_a = turn % 4 != 0;
        b.fill(p, turn);
        const std::string what =
            std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " turn " + std::to_string(turn);
        const auto packed = b.run(p, Layout::packed), row_major = b.run(p, Layout::row_major);
        check(p, b, packed, what);
        ASSERT_EQ(packed, row_major) << what;
      }
}

// Groups that end within, with and behind the pieces of k that the kernels take at once.
TEST_P(BlockGemm, BitsDependOnNeitherThreadsNorRows) {
  Problem p;
  p.m = 70, p.n = 200, p.k = 520;
  p.a_type = Storage::E4M3;
  p.fill(3);
  for (const std::int64_t group : {12, 32, 128, 400}) {
    Blocks b;
    b.group = group, b.block_rows = group == 32 ? 1 : 48;
    b.fill(p, 4);
    std::vector<std::uint8_t> first;
    for (const int threads : {1, 3, 4}) {
      const Threads pool(threads);
      const auto y = b.run(p, Layout::row_major);
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << threads;
    }
    EXPECT_EQ(b.run(p, Layout::packed), first) << group;
    for (const std::int64_t rows : {1, 3, 6, 15}) {  // some rows alone
      for (const std::int64_t row : {0, 37, 55}) {
        Problem some = p;
        some.m = rows;
        some.a.assign(p.a.begin() + row * p.k, p.a.begin() + (row + rows) * p.k);
        some.y0.assign(static_cast<std::size_t>(rows * p.n * 4), 0);
        Blocks part = b;
        const auto at = part.a.begin() + 1 + row * b.groups(p);
        part.a.assign(at - 1, at + rows * b.groups(p) + 1);
        const auto y = part.run(some, Layout::row_major);
        EXPECT_TRUE(std::equal(y.begin(), y.end(), first.begin() + row * p.n * 4))
            << group << " " << rows << " " << row;
      }
    }
  }
}

TEST(BlockGemmArgs, AreChecked) {
  Problem p;
  p.k = 8;
  p.fill(1);
  Blocks b;
  b.fill(p, 1);
  const auto message = [&](auto change) {
    std::vector<std::uint8_t> y = p.y0;
    GemmArgs g = p.args(Layout::row_major, y);
    g.blocks.cols = 4;
    change(g);
    return error_of<std::invalid_argument>([&] { gemm(g); });
  };
  EXPECT_THAT(message([](GemmArgs& g) { g.blocks.cols = 6; }), HasSubstr("blocks.cols"));
  EXPECT_THAT(message([](GemmArgs& g) { g.blocks.cols = -4; }), HasSubstr("blocks.cols"));
  EXPECT_THAT(message([](GemmArgs& g) { g.blocks.rows = 0; }), HasSubstr("blocks.rows"));
  EXPECT_THAT(message([](GemmArgs& g) { g.blocks.first_row = 1; }), HasSubstr("blocks.first_row"));
  EXPECT_THAT(message([](GemmArgs& g) { g.w_scale_inv = nullptr; }), HasSubstr("w_scale_inv"));
}

INSTANTIATE_TEST_SUITE_P(Levels, BlockGemm, testing::ValuesIn(levels()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace fp8::kernels
