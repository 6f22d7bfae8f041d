// SPDX-License-Identifier: Apache-2.0
// The decode of one run of codes, written once over an instruction set Isa; included by each x86/decode_*.cpp as
// cast_loop.h is by its own. A block of two vectors of f32 lanes goes through f16 (decode_scalar.cpp), which vcvtph2ps
// widens exactly, subnormals included:
//
//   E4M3   h = (sign-extended code << 7) & 0xBFFF, a NaN code gets f16's quiet NaN; value = f32(h) * 2^8
//   E5M2   h = code << 8
//
// Isa gives: V, I (vectors of float, of integers), kLanes, set, load, multiply, bits, store, stream; values<F>, the f16
// of a block's codes widened to two vectors; narrow<T>, two vectors rounded to a vector of bf16 or f16.
#pragma once
#include <immintrin.h>

#include "fp8/runtime/kernels/cast_kernels.h"

namespace fp8::kernels {
namespace {

template <class Isa>
inline void put(char* y, typename Isa::I x, bool stream) {
  stream ? Isa::stream(y, x) : Isa::store(y, x);
}

template <class Isa, FloatType T, Format F>
inline void decode_block(const std::uint8_t* codes, typename Isa::V scale0, typename Isa::V scale1, char* y,
                         bool stream) {
  typename Isa::V v[2];
  Isa::template values<F>(codes, v);
  if constexpr (F == Format::E4M3)
    for (auto& x : v) x = Isa::multiply(x, Isa::set(256.0f));
  v[0] = Isa::multiply(v[0], scale0);
  v[1] = Isa::multiply(v[1], scale1);
  if constexpr (T == FloatType::F32) {
    put<Isa>(y, Isa::bits(v[0]), stream);
    put<Isa>(y + sizeof(v[0]), Isa::bits(v[1]), stream);
  } else {
    put<Isa>(y, Isa::template narrow<T>(v[0], v[1]), stream);
  }
}

template <class Isa, FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  constexpr int kBlock = 2 * Isa::kLanes, kSize = T == FloatType::F32 ? 4 : 2;
  char* y = static_cast<char*>(span.y);
  const bool stream = span.stream && (reinterpret_cast<std::uintptr_t>(y) & (sizeof(typename Isa::V) - 1)) == 0;
  typename Isa::V scale0 = Isa::set(span.scales[0]), scale1 = scale0;
  std::int64_t i = 0;
  for (; i + kBlock <= span.n; i += kBlock) {
    if ((i & 63) == 0) _mm_prefetch(reinterpret_cast<const char*>(span.codes + i) + 4096, _MM_HINT_T0);
    if (span.per_element) {
      scale0 = Isa::load(span.scales + i);
      scale1 = Isa::load(span.scales + i + Isa::kLanes);
    }
    decode_block<Isa, T, F>(span.codes + i, scale0, scale1, y + i * kSize, stream);
  }
  if (i < span.n) {  // through buffers, so that nothing outside the run is touched
    const std::size_t rest = static_cast<std::size_t>(span.n - i);
    alignas(64) std::uint8_t codes[kBlock] = {};
    alignas(64) float scales[kBlock] = {};
    alignas(64) char out[kBlock * 4];
    __builtin_memcpy(codes, span.codes + i, rest);
    if (span.per_element) {
      __builtin_memcpy(scales, span.scales + i, rest * sizeof(float));
      scale0 = Isa::load(scales);
      scale1 = Isa::load(scales + Isa::kLanes);
    }
    decode_block<Isa, T, F>(codes, scale0, scale1, out, false);
    __builtin_memcpy(y + i * kSize, out, rest * kSize);
  }
  if (stream) _mm_sfence();
}

template <class Isa>
constexpr DecodeKernels decode_kernels_of() {
  return {{
      {decode_span<Isa, FloatType::F32, Format::E4M3>, decode_span<Isa, FloatType::F32, Format::E5M2>},
      {decode_span<Isa, FloatType::BF16, Format::E4M3>, decode_span<Isa, FloatType::BF16, Format::E5M2>},
      {decode_span<Isa, FloatType::F16, Format::E4M3>, decode_span<Isa, FloatType::F16, Format::E5M2>},
  }};
}

}  // namespace
}  // namespace fp8::kernels
