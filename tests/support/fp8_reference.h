// SPDX-License-Identifier: Apache-2.0
// fp8 arithmetic as a scalar reference anyone can read: codes by searching the nearest of all 256 values, scales by
// their formulas, products in f64. Slow, and independent of the kernels.
//
//   E4M3   s eeee mmm   bias 7    value = m / 8 * 2^-6 (e = 0), else (1 + m / 8) * 2^(e - 7)
//   E5M2   s eeeee mm   bias 15   value = m / 4 * 2^-14 (e = 0), else (1 + m / 4) * 2^(e - 15)
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>

namespace fp8::test {

inline float e4m3_value(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  const double v = e == 0 ? std::ldexp(m / 8.0, -6) : std::ldexp(1 + m / 8.0, e - 7);
  return static_cast<float>((code & 128) != 0 ? -v : v);
}

inline float e5m2_value(int code) {
  const int e = code >> 2 & 31, m = code & 3;
  const double v = e == 0 ? std::ldexp(m / 4.0, -14) : std::ldexp(1 + m / 4.0, e - 15);
  return static_cast<float>((code & 128) != 0 ? -v : v);
}

/// The code nearest to y after clamping to +-max; ties go to the even code; the sign of y stays, that of zero too.
inline std::uint8_t nearest_code(float y, float max, float (*value)(int) = e4m3_value) {
  const double magnitude = std::min<double>(std::abs(y), max);
  int best = 0;
  for (int code = 1; code < 127 && value(code) <= max; ++code) {
    const double d = std::abs(value(code) - magnitude), least = std::abs(value(best) - magnitude);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(y) ? 128 : 0));
}

/// Rounded to bf16 (nearest, ties to even); finite y.
inline float to_bf16(float y) {
  std::uint32_t bits;
  std::memcpy(&bits, &y, 4);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  std::memcpy(&y, &bits, 4);
  return y;
}

/// Our own convention: scale_inv = f32(amax / max), 1 for amax 0.
inline float own_scale_inv(float amax, float max) { return amax == 0 ? 1.0f : amax / max; }

/// A quantized matrix: codes U8 and the values code * scale_inv in f64, in the shape of x.
struct QuantizedReference {
  at::Tensor codes, values;
};

/// x, seen as [scale_inv.size(), rest] (one scale_inv: all of x), with code = nearest(f32(x * f32(1 / scale_inv))).
inline QuantizedReference quantize_reference(const at::Tensor& x, const std::vector<float>& scale_inv, float max) {
  const at::Tensor host = x.detach().cpu().to(at::kFloat).contiguous();
  QuantizedReference out{at::empty(host.sizes(), at::kByte), at::empty(host.sizes(), at::kDouble)};
  const std::int64_t rows = static_cast<std::int64_t>(scale_inv.size()),
                     cols = host.numel() / std::max<std::int64_t>(rows, 1);
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    const float inv = scale_inv[static_cast<std::size_t>(i / cols)], scale = 1.0f / inv;
    const std::uint8_t code = nearest_code(host.const_data_ptr<float>()[i] * scale, max);
    out.codes.mutable_data_ptr<std::uint8_t>()[i] = code;
    out.values.mutable_data_ptr<double>()[i] = static_cast<double>(e4m3_value(code)) * inv;
  }
  return out;
}

/// max |x| of each of `rows` equal parts of x.
inline std::vector<float> amax_reference(const at::Tensor& x, std::int64_t rows) {
  const at::Tensor host = x.detach().cpu().to(at::kFloat).contiguous();
  std::vector<float> amax(static_cast<std::size_t>(rows), 0.0f);
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    float& a = amax[static_cast<std::size_t>(i / (host.numel() / rows))];
    a = std::max(a, std::abs(host.const_data_ptr<float>()[i]));
  }
  return amax;
}

/// quantize_reference with a scale of each part's own amax: dynamic activations (rows = tokens), weights (1 or rows =
/// channels).
inline QuantizedReference quantize_by_amax(const at::Tensor& x, std::int64_t rows, float max = 448.0f) {
  std::vector<float> inv;
  for (float a : amax_reference(x, rows)) inv.push_back(own_scale_inv(a, max));
  return quantize_reference(x, inv, max);
}

/// The bytes of an fp8 tensor.
inline at::Tensor code_bytes(const at::Tensor& fp8) { return fp8.detach().cpu().view(at::kByte); }

// Results are compared as doubles on the CPU.

inline at::Tensor f64(const at::Tensor& t) { return t.detach().cpu().to(at::kDouble); }

/// Frobenius norm of the difference over that of `want`.
inline double relative_error(const at::Tensor& y, const at::Tensor& want) {
  const at::Tensor exact = f64(want);
  return ((f64(y) - exact).norm() / exact.norm()).item<double>();
}

}  // namespace fp8::test

namespace fp8 {
using test::f64;
using test::relative_error;
}  // namespace fp8
