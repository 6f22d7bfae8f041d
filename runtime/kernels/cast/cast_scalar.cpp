// SPDX-License-Identifier: Apache-2.0
// The cast one element at a time: what every level must equal bit for bit.
//
// Rounding to nearest even lets the f32 adder do the work. With MB mantissa bits and y = |x * scale| in [2^e, 2^(e+1)),
// e floored at the smallest normal exponent, the constant m = 2^(e + 23 - MB) has the fp8 step at e as its last bit:
//
//   bits(y + m) = bits(m) + n       n = y / step to even: 2^MB <= n <= 2^(MB+1), or 0 <= n <= 2^MB if subnormal
//   code = n + (e - EMIN) * 2^MB    a carry into the next exponent is already right
#include <algorithm>

#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::kernels {
namespace {

/// 0 <= a <= max -> magnitude code.
template <Format F>
std::uint32_t round_nearest(float a) {
  constexpr int kShift = 23 - Magic<F>::kMantissa;
  constexpr std::uint32_t kMin = std::uint32_t{Magic<F>::kMinExponent} << 23;
  const std::uint32_t exponent = std::max(bits_of(a) & 0x7F800000u, kMin);
  const std::uint32_t m = exponent + (std::uint32_t{kShift} << 23);
  const std::uint32_t n = bits_of(a + float_of(m)) - m;
  return n + ((exponent - kMin) >> kShift);
}

/// 0 <= a <= max: fixed point with kShift fraction bits whose integer part is the code, plus kShift random bits,
/// truncated.
template <Format F>
std::uint32_t round_stochastic(float a, std::uint32_t random) {
  constexpr int kShift = 23 - Magic<F>::kMantissa;
  constexpr std::uint32_t kMin = std::uint32_t{Magic<F>::kMinExponent} << 23;
  const std::uint32_t fixed =
      bits_of(a) < kMin ? static_cast<std::uint32_t>(a * Magic<F>::kSubnormalToFixed) : bits_of(a) - kMin + (1u << 23);
  return (fixed + (random >> (32 - kShift))) >> kShift;
}

std::uint32_t hash(std::uint32_t index, const CastSpan& span) {
  std::uint32_t h = index ^ span.key0;
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= span.key1;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  return h ^ (h >> 16);
}

template <FloatType T, Format F>
std::uint32_t cast_span(const CastSpan& span) {
  std::uint32_t amax = 0;
  for (std::int64_t i = 0; i < span.n; ++i) {
    const float x = load_element(span.x, T, i);
    const float scale = span.scales[span.per_element ? i : 0];
    float y = x * scale;
    if (span.round_product) y = round_to(T, y);
    const std::uint32_t magnitude = bits_of(x) & 0x7FFFFFFFu;
    amax = amax > magnitude ? amax : magnitude;

    std::uint32_t code = 0x7F;
    if (!std::isnan(y)) {
      float a = std::fabs(y) < span.max ? std::fabs(y) : span.max;
      if (span.stochastic && a < span.flush_below) a = 0.0f;
      code = span.stochastic ? round_stochastic<F>(a, hash(span.index + static_cast<std::uint32_t>(i), span))
                             : round_nearest<F>(a);
    }
    // The sign of the product, also where the product is NaN: a platform's own NaN sign would not be the same
    // everywhere.
    const std::uint32_t sign = (bits_of(x) ^ bits_of(scale)) >> 31;
    span.codes[i] = static_cast<std::uint8_t>(code | (sign << 7));
  }
  return amax;
}

}  // namespace

extern const CastKernels kCastScalar = {{
    {cast_span<FloatType::F32, Format::E4M3>, cast_span<FloatType::F32, Format::E5M2>},
    {cast_span<FloatType::BF16, Format::E4M3>, cast_span<FloatType::BF16, Format::E5M2>},
    {cast_span<FloatType::F16, Format::E4M3>, cast_span<FloatType::F16, Format::E5M2>},
}};

}  // namespace fp8::kernels
