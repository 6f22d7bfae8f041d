// SPDX-License-Identifier: Apache-2.0
// A gemm with everything it reads, surrounded by NaN, and its outputs in f64. The formats are written here from their
// definition, not taken from the library.
//
// Tolerance of one output: every product of f32 or narrower with an fp8 value is summed in f32 with one rounding each
// (vdpbf16ps: up to two per pair), so |error| <= (2K + 8) * 2^-24 * sum |a w| * scale + the rounding of y's own type.
#pragma once
#include "fp8/runtime/kernels/gemm.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Nearest value with `bits` significant bits and smallest step 2^min_exponent (ties to even).
inline double round_to(double value, int bits, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value) - bits + 1, min_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

inline std::uint16_t bf16_bits(double value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(round_to(value, 8, -133))) >> 16);
}
inline std::uint16_t f16_bits(double value) {  // finite values up to 65504
  const double rounded = round_to(value, 11, -24);
  const std::uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  const double magnitude = std::fabs(rounded);
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(magnitude, 24));
  const int exponent = std::ilogb(magnitude);
  return static_cast<std::uint16_t>(sign | (exponent + 15) << 10 |
                                    static_cast<int>(std::ldexp(magnitude, 10 - exponent) - 1024));
}

inline double load(const std::vector<std::uint8_t>& bytes, FloatType type, std::int64_t i) {
  const std::uint8_t* at = bytes.data() + i * size_of(type);
  if (type == FloatType::F32) return *reinterpret_cast<const float*>(at);
  return half_value(*reinterpret_cast<const std::uint16_t*>(at), type);
}
inline void store(std::vector<std::uint8_t>& bytes, FloatType type, std::int64_t i, double value) {
  std::uint8_t* at = bytes.data() + i * size_of(type);
  if (type == FloatType::F32)
    *reinterpret_cast<float*>(at) = static_cast<float>(value);
  else
    *reinterpret_cast<std::uint16_t*>(at) = type == FloatType::BF16 ? bf16_bits(value)
                                            : std::isnan(value)     ? 0x7E00
                                                                    : f16_bits(value);
}

// A gemm with everything it reads, surrounded by NaN.
struct Problem {
  std::int64_t m = 1, n = 1, k = 1;
  Storage a_type = Storage::F32;
  Format w_format = Format::E4M3;
  FloatType y_type = FloatType::F32, bias_type = FloatType::F32;
  bool has_bias = false, accumulate = false, a_rows = false, w_channels = false;
  std::int64_t a_gap = 0, y_gap = 0;
  std::vector<std::uint8_t> a, w, packed, bias, y0;
  std::vector<float> a_scale, w_scale;

  int a_size() const { return a_type == Storage::F32 ? 4 : a_type == Storage::BF16 || a_type == Storage::F16 ? 2 : 1; }
  std::int64_t a_stride() const { return k + a_gap; }
  std::int64_t y_stride() const { return n + y_gap; }

  double a_at(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row * a_stride() + col;
    switch (a_type) {
      case Storage::E4M3: return value_of(a[static_cast<std::size_t>(i)], Format::E4M3);
      case Storage::E5M2: return value_of(a[static_cast<std::size_t>(i)], Format::E5M2);
      case Storage::F32: return load(a, FloatType::F32, i);
      case Storage::BF16: return load(a, FloatType::BF16, i);
      case Storage::F16: return load(a, FloatType::F16, i);
    }
    return 0;
  }
  double w_at(std::int64_t row, std::int64_t col) const {
    return value_of(w[static_cast<std::size_t>(row * k + col)], w_format);
  }

  void pack() {
    packed.resize(static_cast<std::size_t>(packed_bytes(n, k)));
    pack_weight(w.data(), n, k, packed.data());
  }

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto code = [&](Format format) {  // any finite code
      std::uint8_t c;
      do c = static_cast<std::uint8_t>(random() >> 9);
      while (!std::isfinite(value_of(c, format)) || std::fabs(value_of(c, format)) > 500);
      return c;
    };
    a.assign(static_cast<std::size_t>(m * a_stride() * a_size()), 0xFF);  // 0xFF.. is NaN in all five types
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t c = 0; c < k; ++c) {
        const std::int64_t i = r * a_stride() + c;
        if (a_type == Storage::E4M3)
          a[static_cast<std::size_t>(i)] = code(Format::E4M3);
        else if (a_type == Storage::E5M2)
          a[static_cast<std::size_t>(i)] = code(Format::E5M2);
        else
          store(a,
                a_type == Storage::F32    ? FloatType::F32
                : a_type == Storage::BF16 ? FloatType::BF16
                                          : FloatType::F16,
                i, normal(random));
      }
    w.resize(static_cast<std::size_t>(n * k));
    for (auto& c : w) c = code(w_format);
    pack();
    const auto scales = [&](std::vector<float>& s, bool vector, std::int64_t count) {
      s.resize(static_cast<std::size_t>(vector ? count : 1));
      for (auto& v : s) v = std::exp2(static_cast<float>(normal(random)));
    };
    scales(a_scale, a_rows, m);
    scales(w_scale, w_channels, n);
    bias.resize(static_cast<std::size_t>(has_bias ? n * size_of(bias_type) : 0));
    if (has_bias)
      for (std::int64_t i = 0; i < n; ++i) store(bias, bias_type, i, normal(random));
    y0.assign(static_cast<std::size_t>(m * y_stride() * size_of(y_type)), 0xFF);
    if (accumulate)
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t c = 0; c < n; ++c) store(y0, y_type, r * y_stride() + c, normal(random));
  }

  GemmArgs args(Layout layout, std::vector<std::uint8_t>& y) const {
    GemmArgs g;
    g.m = m, g.n = n, g.k = k;
    g.a = a.data(), g.a_type = a_type, g.a_stride = a_stride();
    g.w = layout == Layout::packed ? packed.data() : w.data();
    g.w_format = w_format, g.w_layout = layout;
    g.a_scale_inv = a_scale.data(), g.a_scale_stride = a_rows;
    g.w_scale_inv = w_scale.data(), g.w_scale_stride = w_channels;
    g.bias = has_bias ? bias.data() : nullptr, g.bias_type = bias_type;
    g.y = y.data(), g.y_type = y_type, g.y_stride = y_stride();
    g.accumulate = accumulate;
    return g;
  }

  std::vector<std::uint8_t> run(Layout layout) const {
    std::vector<std::uint8_t> y = y0;
    gemm(args(layout, y));
    return y;
  }

  // Compares with f64 sums; also that nothing beside the outputs was written.
  void check(const std::vector<std::uint8_t>& y, const std::string& what) const {
    std::vector<double> weights, row(static_cast<std::size_t>(k));  // decoded once
    for (std::int64_t i = 0; i < n * k; ++i) weights.push_back(w_at(i / k, i % k));
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t i = 0; i < k; ++i) row[static_cast<std::size_t>(i)] = a_at(r, i);
      for (std::int64_t c = 0; c < n; ++c) {
        const double* weight = weights.data() + c * k;
        double sum = 0, magnitude = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const double product = row[static_cast<std::size_t>(i)] * weight[i];
          sum += product;
          magnitude += std::fabs(product);
        }
        const double scale = static_cast<double>(a_scale[static_cast<std::size_t>(a_rows ? r : 0)]) *
                             w_scale[static_cast<std::size_t>(w_channels ? c : 0)];
        const std::int64_t at = r * y_stride() + c;
        const double b = has_bias ? load(bias, bias_type, c) : 0, old = accumulate ? load(y0, y_type, at) : 0;
        const double expected = sum * scale + b + old, got = load(y, y_type, at);
        const double half_ulp = y_type == FloatType::F32 ? 0x1p-24 : y_type == FloatType::BF16 ? 0x1p-8 : 0x1p-11;
        const double size = magnitude * scale + std::fabs(b) + std::fabs(old);
        const double tolerance = (2.0 * static_cast<double>(k) + 8) * 0x1p-24 * size +
                                 std::fabs(expected) * half_ulp * 1.01 + (y_type == FloatType::F16 ? 0x1p-25 : 0);
        ASSERT_LE(std::fabs(got - expected), tolerance)
            << what << " at " << r << "," << c << ": got " << got << ", expected " << expected;
      }
      for (std::int64_t i = (r * y_stride() + n) * size_of(y_type); i < (r + 1) * y_stride() * size_of(y_type); ++i)
        ASSERT_EQ(y[static_cast<std::size_t>(i)], 0xFF) << what << ": wrote beside row " << r;
    }
  }
};

}  // namespace fp8::kernels::test
