// SPDX-License-Identifier: Apache-2.0
// What the tests of the block casts share: matrices with gaps full of NaN, and a tile's amax and an element's code from
// the formulas of cast.h in f64.
#pragma once
#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  std::int64_t rows, cols, block_rows, block_cols;
};

/// A matrix of a type, row_stride = cols + 3, the gap NaN.
struct Matrix {
  FloatType type;
  std::int64_t rows, cols;
  std::vector<float> f32;
  std::vector<std::uint16_t> half;

  Matrix(FloatType t, std::int64_t r, std::int64_t c, unsigned seed) : type(t), rows(r), cols(c) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * stride(); ++i) {
      const bool gap = i % stride() >= cols;
      const float v = std::ldexp(normal(random), static_cast<int>(random() % 12) - 6);
      if (type == FloatType::F32)
        f32.push_back(gap ? kNaN : v);
      else if (type == FloatType::BF16)
        half.push_back(gap ? 0x7FC0 : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16));
      else
        half.push_back(gap ? 0x7E00 : static_cast<std::uint16_t>((random() & 0x8000) | (0x2000 + random() % 0x2800)));
    }
  }
  std::int64_t stride() const { return cols + 3; }
  const void* data() const { return type == FloatType::F32 ? static_cast<const void*>(f32.data()) : half.data(); }
  double at(std::int64_t r, std::int64_t c) const {
    return element(data(), type, static_cast<std::size_t>(r * stride() + c));
  }
  bool sign(std::int64_t r, std::int64_t c) const {
    return sign_of(data(), type, static_cast<std::size_t>(r * stride() + c));
  }
};

inline double amax_of(const Matrix& x, const Shape& s, std::int64_t tile_row, std::int64_t tile_col) {
  double amax = 0;
  for (std::int64_t r = tile_row * s.block_rows; r < std::min(s.rows, (tile_row + 1) * s.block_rows); ++r)
    for (std::int64_t c = tile_col * s.block_cols; c < std::min(s.cols, (tile_col + 1) * s.block_cols); ++c) {
      if (std::isnan(x.at(r, c))) return std::numeric_limits<double>::quiet_NaN();
      amax = std::max(amax, std::fabs(x.at(r, c)));
    }
  return amax;
}

/// The code of x(r, c) * scale by search on the grid.
inline int code_of(const Matrix& x, std::int64_t r, std::int64_t c, double scale, const std::vector<double>& values) {
  const double y = static_cast<double>(static_cast<float>(x.at(r, c) * scale));
  return nearest_on_grid(y, values) | (x.sign(r, c) ? 0x80 : 0);
}

inline std::int64_t tiles(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

}  // namespace fp8::kernels::test
