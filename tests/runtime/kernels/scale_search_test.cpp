// SPDX-License-Identifier: Apache-2.0
// Errors of the candidates for a scale against sums in double over the format's grid, on every level, and the choice.

#include "fp8/runtime/kernels/scale_search.h"

#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

/// The definition: values of one unit, double all the way but for the multipliers.
std::vector<double> expected(const std::vector<double>& values, float scale_inv, Format format, float max) {
  const std::vector<double> grid = test::grid(format, max);
  std::vector<double> errors;
  for (int j = -8; j <= 16; ++j) {
    const float inv = static_cast<float>(static_cast<double>(scale_inv) * static_cast<float>(std::exp2(j / 16.0)));
    const double scale = 1.0f / inv;
    double sum = 0;
    for (const double w : values) {
      const double y = w * scale, r = std::copysign(grid[test::nearest_on_grid(y, grid)], y);
      sum += (w - r * inv) * (w - r * inv);
    }
    errors.push_back(sum);
  }
  return errors;
}

/// Sums of f32 are as near as f32 products of the values are; the choice is of those that are least then.
void expect_near(const double* found, const std::vector<double>& values, float scale_inv, Format format, float max) {
  const std::vector<double> errors = expected(values, scale_inv, format, max);
  double squares = 0;
  for (const double w : values) squares += w * w;
  const auto bound = [&](double error) { return 1e-4 * error + 1e-12 * squares; };
  for (int i = 0; i < kScaleCandidates; ++i) EXPECT_NEAR(found[i], errors[i], bound(errors[i])) << i;
  const double best = *std::min_element(errors.begin(), errors.end());
  EXPECT_LE(errors[least_error(found)], best + bound(best));
}

struct Matrix {
  Matrix(std::int64_t r, std::int64_t c, FloatType t, unsigned seed) : rows(r), cols(c), type(t) {
    const auto size = static_cast<std::size_t>(size_of(t));
    bytes.resize(static_cast<std::size_t>(r * (c + 3)) * size, static_cast<char>(0xFF));  // NaN between the rows
    const auto x = test::normal(static_cast<std::size_t>(r * c), seed, 0.05f);
    for (std::size_t row = 0, i = 0; row < static_cast<std::size_t>(r); ++row)
      for (std::size_t col = 0; col < static_cast<std::size_t>(c); ++col, ++i) {
        char* to = bytes.data() + (row * static_cast<std::size_t>(c + 3) + col) * size;
        const std::uint16_t bf16 = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16);
        const std::uint16_t f16 = static_cast<std::uint16_t>(0x2000 + (bf16 & 0x8FFF) % 0x1800);
        if (t == FloatType::F32) std::memcpy(to, &x[i], 4);
        if (t == FloatType::BF16) std::memcpy(to, &bf16, 2);
        if (t == FloatType::F16) std::memcpy(to, &f16, 2);
      }
  }
  CastArgs args(ScaleLayout layout, Format format, float max) const {
    CastArgs a;
    a.x = bytes.data(), a.type = type, a.rows = rows, a.cols = cols, a.row_stride = cols + 3;
    a.layout = layout, a.format = format, a.max = max;
    return a;
  }
  std::vector<double> values(std::int64_t row, std::int64_t n, std::int64_t col, std::int64_t width) const {
    std::vector<double> out;
    for (std::int64_t r = row; r < std::min(rows, row + n); ++r)
      for (std::int64_t c = col; c < std::min(cols, col + width); ++c)
        out.push_back(test::element(bytes.data(), type, static_cast<std::size_t>(r * (cols + 3) + c)));
    return out;
  }
  std::int64_t rows, cols;
  FloatType type;
  std::vector<char> bytes;
};

float scale_inv_of(const std::vector<double>& values, float max) {
  double amax = 0;
  for (const double v : values) amax = std::max(amax, std::fabs(v));
  return static_cast<float>(amax) / max;
}

TEST(ScaleSearch, RowsOnEveryLevelTypeAndFormat) {
  for (const SimdLevel level : test::every_level()) {
    SCOPED_TRACE(name_of(level));
    for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16})
      for (const auto& [format, max] :
           {std::pair{Format::E4M3, 448.0f}, {Format::E4M3, 240.0f}, {Format::E5M2, 57344.0f}})
        for (const std::int64_t cols : {1, 15, 16, 17, 1024, 1100, 2500}) {
          const Matrix m(3, cols, type, static_cast<unsigned>(cols));
          std::vector<float> inv;
          for (int r = 0; r < 3; ++r) inv.push_back(scale_inv_of(m.values(r, 1, 0, cols), max));
          std::vector<double> errors(3 * kScaleCandidates);
          scale_errors(m.args(ScaleLayout::per_row(), format, max), inv.data(), errors.data());
          for (int r = 0; r < 3; ++r)
            expect_near(errors.data() + r * kScaleCandidates, m.values(r, 1, 0, cols), inv[r], format, max);
        }
  }
}

TEST(ScaleSearch, BlocksAndEdges) {
  const Matrix m(70, 50, FloatType::BF16, 3);
  const auto layout = ScaleLayout::blocks(32, 24);
  std::vector<float> inv;
  for (int row = 0; row < 70; row += 32)
    for (int col = 0; col < 50; col += 24) inv.push_back(scale_inv_of(m.values(row, 32, col, 24), 448));
  std::vector<double> errors(inv.size() * kScaleCandidates);
  scale_errors(m.args(layout, Format::E4M3, 448), inv.data(), errors.data());
  for (std::size_t i = 0; i < inv.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / 3 * 32), col = static_cast<std::int64_t>(i % 3 * 24);
    expect_near(errors.data() + i * kScaleCandidates, m.values(row, 32, col, 24), inv[i], Format::E4M3, 448);
  }
}

TEST(ScaleSearch, BitsDependNeitherOnThreadsNorOnTheLevel) {
  const Matrix m(40, 3000, FloatType::F32, 5);
  const float inv = scale_inv_of(m.values(0, 40, 0, 3000), 448);
  const auto args = m.args(ScaleLayout::per_tensor(), Format::E4M3, 448);
  std::vector<double> first(40 * kScaleCandidates), other(first.size());
  {
    ScopedSimdLevel scoped(SimdLevel::scalar);
    scale_errors(args, &inv, first.data());
  }
  for (const int threads : {1, 2, 5}) {
    test::Threads some(threads);
    for (const SimdLevel level : test::every_level()) {
      scale_errors(args, &inv, other.data());
      EXPECT_EQ(first, other) << name_of(level) << threads;
    }
  }
}

TEST(ScaleSearch, ChoosesTheFirstOfEquals) {
  // All values on the grid of several candidates: 1 and 1.5 are exact under every power of two.
  std::vector<float> x = {448.0f, 1.5f, -1.0f, 256.0f};
  CastArgs args;
  args.x = x.data(), args.rows = 1, args.cols = args.row_stride = 4, args.layout = ScaleLayout::per_row();
  float inv = 1;
  double errors[kScaleCandidates];
  scale_errors(args, &inv, errors);
  EXPECT_EQ(errors[8], 0);
  EXPECT_EQ(errors[24], 0);
  EXPECT_EQ(least_error(errors), 8);
  x = {0, 0, 0, 0};
  scale_errors(args, &inv, errors);
  EXPECT_EQ(least_error(errors), 8) << "zeros keep the scale of their amax";
  x = {0x1p-126f, 0, 0, 0};  // half a step below the smallest scale_inv there is no multiplier
  inv = 0x1p-126f;
  scale_errors(args, &inv, errors);
  EXPECT_TRUE(std::isinf(errors[0]));
  EXPECT_GE(least_error(errors), 8);
}

TEST(ScaleSearch, RefusesWhatItCannotIndex) {
  std::vector<float> x(8, 1), inv(8, 1);
  std::vector<double> errors(8 * kScaleCandidates);
  CastArgs good;
  good.x = x.data(), good.rows = 2, good.cols = good.row_stride = 4, good.layout = ScaleLayout::per_row();
  const auto call = [&](const auto& change) {
    CastArgs args = good;
    change(args);
    EXPECT_THROW(scale_errors(args, inv.data(), errors.data()), std::invalid_argument);
  };
  call([](CastArgs& a) { a.rows = -1; });
  call([](CastArgs& a) { a.row_stride = 3; });
  call([](CastArgs& a) { a.x = nullptr; });
  call([](CastArgs& a) { a.max = 449; });
  call([](CastArgs& a) { a.layout = ScaleLayout::per_column(); });
  EXPECT_THROW(scale_errors(good, nullptr, errors.data()), std::invalid_argument);
  EXPECT_THROW(scale_errors(good, inv.data(), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
