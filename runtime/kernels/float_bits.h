// SPDX-License-Identifier: Apache-2.0
// Bits of f32, bf16 and f16 and the exact conversions between them, for the scalar code of this folder.
//
//   f32   s eeeeeeee mmm mmmm mmmm mmmm mmmm mmmm    bf16 is its upper half
//   f16   s eeeee mm mmmm mmmm                       bias 15, min normal 2^-14, min subnormal 2^-24, max 65504
#pragma once
#include <bit>
#include <cmath>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Exact; a signalling NaN becomes quiet, as the hardware's conversion does.
inline float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  const std::uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3FF;
  if (exponent == 31) {
    return float_of(sign | 0x7F800000u | (mantissa << 13) | (mantissa != 0 ? 0x00400000u : 0u));
  }
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f : float_of(((exponent + 112) << 23) | (mantissa << 13));
  return float_of(bits_of(magnitude) | sign);
}

/// Round to nearest even; NaN keeps sign and upper payload, quiet.
inline std::uint16_t f32_to_f16(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // 65520 and above
  if (magnitude < 0x38800000u) {                       // below 2^-14: adding 0.5 makes the adder round to 2^-24
    return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

inline float bf16_to_f32(std::uint16_t h) { return float_of(static_cast<std::uint32_t>(h) << 16); }

/// Round to nearest even; NaN keeps sign and upper payload, quiet.
inline std::uint16_t f32_to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// y rounded to `type`, as f32.
inline float round_to(FloatType type, float y) {
  if (type == FloatType::BF16) return bf16_to_f32(f32_to_bf16(y));
  if (type == FloatType::F16) return f16_to_f32(f32_to_f16(y));
  return y;
}

/// Element i of an array of `type`, as f32.
inline float load_element(const void* x, FloatType type, std::int64_t i) {
  switch (type) {
    case FloatType::BF16: return bf16_to_f32(static_cast<const std::uint16_t*>(x)[i]);
    case FloatType::F16: return f16_to_f32(static_cast<const std::uint16_t*>(x)[i]);
    case FloatType::F32: break;
  }
  return static_cast<const float*>(x)[i];
}

// Random bits that are a function of a seed and a number, so that they are the same in any order and on any thread:
// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
//
//   splitmix64(seed, i) = mix(seed + (i + 1) * 0x9e3779b97f4a7c15)     the generator's output number i, from 0

/// Each bit of z changes about half of the bits; no two z give the same.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t i) {
  return mix(seed + (i + 1) * 0x9e3779b97f4a7c15u);
}

}  // namespace fp8::kernels
