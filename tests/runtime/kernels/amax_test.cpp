// SPDX-License-Identifier: Apache-2.0
// amax over everything, rows and columns, on every level, against plain loops over exact values.

#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

/// Random bits of `type` without NaN and infinity.
std::vector<char> finite_values(std::size_t n, FloatType type, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> x(n * static_cast<std::size_t>(size_of(type)));
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (type == FloatType::F32) {
      const std::uint32_t finite = (bits & 0x7F800000u) == 0x7F800000u ? bits & 0x80FFFFFFu : bits;
      std::memcpy(x.data() + 4 * i, &finite, 4);
    } else {
      const std::uint16_t top = type == FloatType::BF16 ? 0x7F80 : 0x7C00;
      std::uint16_t half = static_cast<std::uint16_t>(bits);
      if ((half & top) == top) half = static_cast<std::uint16_t>(half & ~0x4000);
      std::memcpy(x.data() + 2 * i, &half, 2);
    }
  }
  return x;
}

float plain_amax(const char* x, FloatType type, std::size_t n) {
  double best = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double v = std::fabs(test::element(x, type, i));
    if (std::isnan(v)) return std::numeric_limits<float>::quiet_NaN();
    best = std::max(best, v);
  }
  return static_cast<float>(best);
}

void put(std::vector<char>& x, FloatType type, std::size_t i, double value) {
  const bool nan = std::isnan(value);
  const std::uint32_t f32 = nan ? 0xFFC00001u : 0xFF800000u;  // negative NaN or infinity
  const std::uint16_t bf16 = nan ? 0xFF81 : 0xFF80, f16 = nan ? 0xFC01 : 0xFC00;
  if (type == FloatType::F32) std::memcpy(x.data() + 4 * i, &f32, 4);
  if (type == FloatType::BF16) std::memcpy(x.data() + 2 * i, &bf16, 2);
  if (type == FloatType::F16) std::memcpy(x.data() + 2 * i, &f16, 2);
}

class Amax : public testing::TestWithParam<FloatType> {};

TEST_P(Amax, EveryShortLengthUpToTheEndOfMemory) {
  const FloatType type = GetParam();
  const std::size_t size = static_cast<std::size_t>(size_of(type));
  for (const SimdLevel level : every_level())
    for (std::size_t n = 1; n <= 300; ++n) {
      const std::vector<char> x = finite_values(n, type, static_cast<unsigned>(n));
      test::GuardedBuffer<char> guarded(n * size);
      std::memcpy(guarded.data(), x.data(), x.size());
      EXPECT_EQ(amax(guarded.data(), type, static_cast<std::int64_t>(n)), plain_amax(x.data(), type, n))
          << name_of(level);
      std::vector<char> padded((n + 10) * size, static_cast<char>(0xFF));  // NaN around
      std::memcpy(padded.data() + 3 * size, x.data(), x.size());
      EXPECT_EQ(amax(padded.data() + 3 * size, type, static_cast<std::int64_t>(n)), plain_amax(x.data(), type, n));
    }
}

TEST_P(Amax, TheLargestIsFoundWhereverItStands) {
  const FloatType type = GetParam();
  constexpr std::size_t kN = 517;
  for (const SimdLevel level : every_level())
    for (std::size_t at = 0; at < kN; ++at)
      for (double special : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        std::vector<char> x = finite_values(kN, type, 1);
        put(x, type, at, special);
        const float found = amax(x.data(), type, kN);
        if (std::isnan(special)) {
          EXPECT_TRUE(std::isnan(found)) << at << name_of(level);
        } else {
          EXPECT_EQ(found, std::numeric_limits<float>::infinity()) << at;
        }
      }
}

TEST_P(Amax, NaNWinsOverInfinity) {
  std::vector<char> x = finite_values(100, GetParam(), 2);
  put(x, GetParam(), 10, std::numeric_limits<double>::quiet_NaN());
  put(x, GetParam(), 90, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(amax(x.data(), GetParam(), 100)));
}

TEST_P(Amax, LongInputOnSeveralThreads) {
  constexpr std::size_t kN = 3'000'001;
  const std::vector<char> x = finite_values(kN, GetParam(), 4);
  for (int threads : {1, 3}) {
    const Threads pool(threads);
    for (const SimdLevel level : every_level())
      EXPECT_EQ(amax(x.data(), GetParam(), kN), plain_amax(x.data(), GetParam(), kN)) << name_of(level);
  }
}

TEST_P(Amax, RowsAndColumns) {
  const FloatType type = GetParam();
  const std::size_t size = static_cast<std::size_t>(size_of(type));
  struct Shape {
    std::size_t rows, cols, stride;
  };
  for (Shape s :
       {Shape{1, 1, 1}, {5, 33, 40}, {300, 17, 17}, {3, 5000, 5003}, {2, 300'000, 300'000}, {0, 4, 4}, {4, 0, 0}}) {
    std::vector<char> x(s.rows * s.stride * size, static_cast<char>(0xFF));  // NaN between the rows
    const std::vector<char> dense = finite_values(s.rows * s.cols, type, static_cast<unsigned>(s.cols));
    for (std::size_t r = 0; r < s.rows && s.cols > 0; ++r)
      std::memcpy(x.data() + r * s.stride * size, dense.data() + r * s.cols * size, s.cols * size);
    std::vector<float> by_row(s.rows, 0.0f), by_col(s.cols, 0.0f);
    for (std::size_t i = 0; i < s.rows * s.cols; ++i) {
      const float v = static_cast<float>(std::fabs(test::element(dense.data(), type, i)));
      by_row[i / s.cols] = std::max(by_row[i / s.cols], v);
      by_col[i % s.cols] = std::max(by_col[i % s.cols], v);
    }
    for (const SimdLevel level : every_level()) {
      std::vector<float> rows(s.rows, -1.0f), cols(s.cols, -1.0f);
      const auto n_rows = static_cast<std::int64_t>(s.rows), n_cols = static_cast<std::int64_t>(s.cols);
      amax_rows(x.data(), type, n_rows, n_cols, static_cast<std::int64_t>(s.stride), rows.data());
      amax_cols(x.data(), type, n_rows, n_cols, static_cast<std::int64_t>(s.stride), cols.data());
      EXPECT_EQ(rows, by_row) << name_of(level) << " " << s.rows << "x" << s.cols;
      EXPECT_EQ(cols, by_col) << name_of(level) << " " << s.rows << "x" << s.cols;
    }
  }
}

TEST_P(Amax, ANaNStaysInItsRowAndColumn) {
  constexpr std::size_t kRows = 6, kCols = 70;
  std::vector<char> x = finite_values(kRows * kCols, GetParam(), 8);
  put(x, GetParam(), 2 * kCols + 65, std::numeric_limits<double>::quiet_NaN());
  std::vector<float> rows(kRows), cols(kCols);
  amax_rows(x.data(), GetParam(), kRows, kCols, kCols, rows.data());
  amax_cols(x.data(), GetParam(), kRows, kCols, kCols, cols.data());
  for (std::size_t r = 0; r < kRows; ++r) EXPECT_EQ(std::isnan(rows[r]), r == 2);
  for (std::size_t c = 0; c < kCols; ++c) EXPECT_EQ(std::isnan(cols[c]), c == 65);
}

INSTANTIATE_TEST_SUITE_P(Types, Amax, testing::Values(FloatType::F32, FloatType::BF16, FloatType::F16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AmaxErrors, BadSizesAndPointers) {
  float x[4] = {}, out[4];
  EXPECT_THROW(amax(x, FloatType::F32, -1), std::invalid_argument);
  EXPECT_THROW(amax(nullptr, FloatType::F32, 1), std::invalid_argument);
  EXPECT_THROW(amax_rows(x, FloatType::F32, 2, 2, 1, out), std::invalid_argument);
  EXPECT_THROW(amax_rows(x, FloatType::F32, 2, 0, 2, nullptr), std::invalid_argument);
  EXPECT_THROW(amax_cols(x, FloatType::F32, 2, 2, 2, nullptr), std::invalid_argument);
  EXPECT_THROW(amax_cols(x, FloatType::F32, std::int64_t{1} << 40, 2, std::int64_t{1} << 40, out),
               std::invalid_argument);
  EXPECT_EQ(amax(nullptr, FloatType::F32, 0), 0.0f);
}

}  // namespace
}  // namespace fp8::kernels
