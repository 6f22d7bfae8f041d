// SPDX-License-Identifier: Apache-2.0
// What the tests of the casts share: inputs that are hard to round, and the reference, which rounds by search on the
// value grid of the format (kernel_test.h).
#pragma once
#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels::test {

struct Target {
  Format format;
  float max;
};
constexpr Target kTargets[] = {{Format::E4M3, 448.0f}, {Format::E4M3, 240.0f}, {Format::E5M2, 57344.0f}};

struct Reference {
  std::vector<std::uint8_t> codes;
  float amax = 0.0f;
};

/// scale of element i is scales[i % scales.size()].
inline Reference reference(const void* x, FloatType type, std::size_t n, const std::vector<float>& scales,
                           Target target, bool round_product = false) {
  const std::vector<double> values = grid(target.format, target.max);
  Reference result;
  result.codes.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const float scale = scales[i % scales.size()];
    const double v = element(x, type, i);
    double y =
        static_cast<double>(static_cast<float>(v * static_cast<double>(scale)));  // exact in double, one rounding
    if (round_product) y = round_to(y, type);
    const bool sign = sign_of(x, type, i) != std::signbit(scale);
    result.codes[i] = static_cast<std::uint8_t>(nearest_on_grid(y, values) | (sign ? 0x80 : 0));
    if (std::isnan(v) || std::isnan(result.amax)) {
      result.amax = std::numeric_limits<float>::quiet_NaN();
    } else {
      result.amax = std::max(result.amax, static_cast<float>(std::fabs(v)));
    }
  }
  return result;
}

template <class Args = CastArgs>
Args matrix_args(const void* x, FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                 std::uint8_t* codes) {
  Args args;
  args.x = x, args.type = type;
  args.rows = rows, args.cols = cols, args.row_stride = row_stride;
  args.codes = codes;
  return args;
}

inline CastArgs args_for(const void* x, FloatType type, std::size_t n, Target target, const float* scale,
                         std::uint8_t* codes) {
  CastArgs args = matrix_args(x, type, 1, static_cast<std::int64_t>(n), static_cast<std::int64_t>(n), codes);
  args.format = target.format;
  args.max = target.max;
  args.scales = scale;
  return args;
}

inline void expect_same(const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& want,
                        const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  const auto at = std::mismatch(got.begin(), got.end(), want.begin()).first;
  ASSERT_TRUE(at == got.end()) << what << ": element " << at - got.begin() << " is " << int{*at} << ", expected "
                               << int{want[static_cast<std::size_t>(at - got.begin())]};
}

/// Every grid value, every midpoint and their f32 neighbours, f32 subnormals, the special values; the rest random bits
/// and random numbers around the formats' ranges.
inline std::vector<float> hard_inputs(std::size_t n) {
  std::vector<float> x;
  for (Format format : {Format::E4M3, Format::E5M2}) {
    const std::vector<double> values = grid(format, fp8_max(format, Dialect::ocp));
    for (std::size_t i = 0; i + 1 < values.size(); ++i)
      for (double v : {values[i], (values[i] + values[i + 1]) / 2}) {
        const float f = static_cast<float>(v);
        for (float y : {f, std::nextafter(f, 1e30f), std::nextafter(f, -1e30f)}) x.insert(x.end(), {y, -y});
      }
  }
  for (float f : {448.0f, 464.0f, 480.0f, 240.0f, 248.0f, 256.0f, 57344.0f, 61440.0f, 65536.0f, 3.4028235e38f,
                  std::numeric_limits<float>::infinity()})
    for (float y : {f, std::nextafter(f, 0.0f), std::nextafter(f, std::numeric_limits<float>::infinity())})
      x.insert(x.end(), {y, -y});
  for (std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 1u,
                             0x80000001u, 0x007fffffu, 0x00800000u, 0u, 0x80000000u})
    x.push_back(std::bit_cast<float>(bits));
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  while (x.size() < n) {
    const std::uint64_t r = random();
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(r)));
    x.push_back(std::ldexp(static_cast<float>(static_cast<std::int32_t>(r >> 32)), static_cast<int>(r % 44) - 56));
    x.push_back(normal(random));
  }
  x.resize(n);
  return x;
}

/// Random numbers of `type` in the formats' range, as bytes.
inline std::vector<std::uint16_t> random_halves(std::size_t n, FloatType type, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> x(n);
  const unsigned exponent = type == FloatType::BF16 ? 0x3E00 : 0x3400;
  for (auto& v : x) v = static_cast<std::uint16_t>((random() & 0x8000) | (exponent + random() % 0x400));
  return x;
}

// What the tests of the block casts share: matrices with gaps full of NaN, and a tile's amax and an element's code from
// the formulas of cast.h in f64.

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
