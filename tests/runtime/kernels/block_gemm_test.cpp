// SPDX-License-Identifier: Apache-2.0
// gemm with scales per block of W and per group of A's columns, against sums in f64: every level, odd sizes, ragged
// groups and blocks, weights that begin within a block, scales surrounded by NaN.
#include "runtime/kernels/gemm_problem.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using test::kNan;
using test::load;
using test::Problem;

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
  for (std::int64_t r = 0; r < p.m; ++r) {
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
}

class BlockGemm : public testing::TestWithParam<SimdLevel> {
  const ScopedSimdLevel level_{GetParam()};
};

TEST_P(BlockGemm, OddSizesMatchF64) {
  constexpr std::int64_t kGroups[] = {4, 8, 32, 64, 128, 4096}, kBlockRows[] = {1, 3, 16, 32, 128, 4096};
  unsigned turn = 0;
  for (const std::int64_t m : {0, 1, 2, 4, 5, 9, 17, 33}) {
    for (const std::int64_t n : {1, 5, 16, 17, 33, 64, 130}) {
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
