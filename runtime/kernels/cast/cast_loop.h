// SPDX-License-Identifier: Apache-2.0
// The cast of one run of elements and the decode of one run of codes, written once over an instruction set Isa.
// Included by the cast_*.cpp of each level, compiled with that file's flags: everything is in an anonymous namespace,
// so that no copy can reach another level's code.
//
//   blocks of 4 vectors of f32 lanes -> 4 vectors of codes -> one vector of bytes
//   a = min(|x| * |scale|, max)                           t = max(exponent of a, EMIN), a power of 2 (cast_scalar.cpp)
//   s = a + t * K, one FMA                                K = 2^(23-MB) + C * 2^-MB, C = -(EMIN << MB) mod 256:
//                                                         2^20 + 7 (E4M3), 2^21 + 15 (E5M2)
//   code = low 7 bits of bits(s) + (bits(t) >> (23-MB))   C is even, so ties keep their parity
//   sign byte = sign(x) ^ sign(scale)                     packed straight from the input bits
//
// Stochastic rounding truncates s instead, after a + t * r with random r in [0, 2^-MB): each sum is exact or loses bits
// below the last kept one, and a floor of a floor is the floor (AVX-512, whose instructions round to zero at no cost).
// t | r * 2^23 as bits is t + t * r as a float; the K of that is less by the 1 that came with it.
//
// NaN costs two of ten operations per vector, so runs with one finite scale are first cast without it (kNaN = false,
// which also leaves out flush_below). Their amax, an integer maximum, says whether there was a NaN; then that piece of
// the run is cast again.
//
// bf16 times one scale 2^k is cast in 16-bit lanes where the set has shifts by 16-bit counts: see cast_run_of_power().
//
// Isa gives: V, I (vectors of float, of integers), kLanes, loads of T, signs, lane_index<T>, product rounding, encode
// functions and finish<T>, which packs; kCasts16 and, where that is true, nearest16. BF16 lanes come in unpack order,
// undone by the pack at no cost. For the decode: bits; values<F>, the f16 of a block's codes widened to two vectors;
// narrow<T>, two vectors rounded to a vector of bf16 or f16.
#pragma once
#include <immintrin.h>

#include "fp8/runtime/kernels/cast/cast_kernels.h"

namespace fp8::kernels {
namespace {

#define FP8_INLINE inline __attribute__((always_inline))

/// Elements that are cast before their amax is asked about NaN; a multiple of every block.
constexpr std::int64_t kPiece = 8192;

/// Prefetch distance in bytes; covers the DRAM latency at one core's bandwidth.
constexpr int kAhead = 8192;

constexpr int bytes_per_element(FloatType type) { return type == FloatType::F32 ? 4 : 2; }

/// Constants of a whole run.
template <class Isa>
struct Run {
  typename Isa::V scale, max, flush_below;  // |scale|
  typename Isa::I sign_flip;                // bytes: 0x80 where the one scale is negative
  typename Isa::I key0, key1;               // each with its upper bits xored into its lower ones, as hash() does
};

template <class Isa>
struct Lanes {
  typename Isa::V v[4];  // |x| as f32
  typename Isa::I sign;  // bytes whose top bit is the sign of x, in packed order
};

/// 4 * kLanes elements; unpack{lo,hi} with zero below gives a bf16 as f32, and the packs undo exactly that order.
template <class Isa, FloatType T>
FP8_INLINE void load(const char* x, Lanes<Isa>& lanes, typename Isa::I& amax) {
  if constexpr (T == FloatType::BF16) {
    const auto u0 = Isa::load(x), u1 = Isa::load(x + 4 * Isa::kLanes);
    const auto a0 = Isa::magnitude16(u0), a1 = Isa::magnitude16(u1);
    lanes.v[0] = Isa::unpack_low(a0), lanes.v[1] = Isa::unpack_high(a0);
    lanes.v[2] = Isa::unpack_low(a1), lanes.v[3] = Isa::unpack_high(a1);
    lanes.sign = Isa::signs16(u0, u1);
    amax = Isa::max16(amax, Isa::max16(a0, a1));
  } else {
    for (int j = 0; j < 4; ++j) lanes.v[j] = Isa::template load_f32<T>(x, j);
    lanes.sign = Isa::template signs<T>(lanes.v);
    for (int j = 0; j < 4; ++j) {
      lanes.v[j] = Isa::absolute(lanes.v[j]);
      amax = Isa::max32(amax, lanes.v[j]);
    }
  }
}

/// A scale for each lane, in the lanes' order.
template <class Isa, FloatType T>
FP8_INLINE void load_scales(const float* p, typename Isa::V* scale) {
  for (int j = 0; j < 4; ++j) scale[j] = Isa::template load_f32<FloatType::F32>(reinterpret_cast<const char*>(p), j);
  if constexpr (T == FloatType::BF16) {
    Isa::to_unpack_order(scale[0], scale[1]);
    Isa::to_unpack_order(scale[2], scale[3]);
  }
}

/// The random bits of kLanes elements (cast_kernels.h) without the last step, h ^= h >> 16, which `stochastic` takes
/// along with its own shift. xor and shift commute: h = i ^ key; h ^ h >> 16 is i ^ i >> 16 ^ (key ^ key >> 16).
template <class Isa>
FP8_INLINE typename Isa::I hash(typename Isa::I index, const Run<Isa>& run) {
  auto h = Isa::bit_xor(index, Isa::template shift_right<16>(index), run.key0);
  h = Isa::multiply(h, Isa::set(0x7feb352du));
  h = Isa::bit_xor(h, Isa::template shift_right<15>(h), run.key1);
  return Isa::multiply(h, Isa::set(0x846ca68bu));
}

/// One block of 4 * kLanes elements; returns their codes in memory order.
template <class Isa, FloatType T, Format F, bool kPerElement, bool kRoundProduct, bool kStochastic, bool kNaN>
FP8_INLINE typename Isa::I cast_block(const char* x, const float* scales, std::uint32_t index, const Run<Isa>& run,
                                      typename Isa::I& amax) {
  Lanes<Isa> lanes;
  load<Isa, T>(x, lanes, amax);
  typename Isa::V scale[4] = {run.scale, run.scale, run.scale, run.scale};
  typename Isa::I sign = Isa::bit_xor(lanes.sign, run.sign_flip);
  if constexpr (kPerElement) {
    load_scales<Isa, T>(scales, scale);
    sign = Isa::bit_xor(lanes.sign, Isa::template signs<T>(scale));
    for (int j = 0; j < 4; ++j) scale[j] = Isa::absolute(scale[j]);
  }
  const typename Isa::I first = Isa::set(index);
  typename Isa::I code[4];
  for (int j = 0; j < 4; ++j) {
    typename Isa::V y = Isa::multiply(lanes.v[j], scale[j]);
    if constexpr (kRoundProduct) y = Isa::template round_to<T>(y);
    if constexpr (kStochastic) {
      if constexpr (kNaN) y = Isa::flush(y, run.flush_below);
      code[j] = Isa::template stochastic<F>(y, run.max, hash<Isa>(Isa::template lane_index<T>(first, j), run));
    } else {
      code[j] = Isa::template nearest<F>(y, run.max);
    }
    if constexpr (kNaN) code[j] = Isa::keep_nan(code[j], y);
  }
  return Isa::template finish<T>(code, sign);
}

/// Elements [i, i + n) of the run, n less than a block: through zeroed buffers, so that nothing outside is read or
/// written.
template <class Isa, FloatType T, bool kPerElement, class Block>
FP8_INLINE void cast_part(const CastSpan& span, std::int64_t i, std::int64_t n, const Block& block,
                          typename Isa::I& amax) {
  constexpr int kBlock = 4 * Isa::kLanes, kSize = bytes_per_element(T);
  alignas(64) char x[kBlock * 4] = {};
  alignas(64) float scales[kBlock] = {};
  alignas(64) std::uint8_t codes[kBlock];
  const std::size_t count = static_cast<std::size_t>(n);
  __builtin_memcpy(x, static_cast<const char*>(span.x) + i * kSize, count * kSize);
  if (kPerElement) __builtin_memcpy(scales, span.scales + i, count * sizeof(float));
  Isa::store(codes, block(x, scales, span.index + static_cast<std::uint32_t>(i), amax));
  __builtin_memcpy(span.codes + i, codes, count);
}

/// block(x, scales, index, amax): the codes of 4 * kLanes elements.
template <class Isa, FloatType T, bool kPerElement, class Block>
FP8_INLINE std::uint32_t cast_blocks(const CastSpan& span, const Block& block) {
  constexpr int kBlock = 4 * Isa::kLanes, kSize = bytes_per_element(T);
  typename Isa::I amax = Isa::set(0u);
  const char* x = static_cast<const char*>(span.x);
  std::int64_t i = 0;
  if (span.stream) {  // streaming stores want aligned addresses
    const std::int64_t head = -reinterpret_cast<std::intptr_t>(span.codes) & (kBlock - 1);
    i = head < span.n ? head : span.n;
    if (i > 0) cast_part<Isa, T, kPerElement>(span, 0, i, block, amax);
  }
  for (; i + kBlock <= span.n; i += kBlock) {
    for (int line = 0; line < kBlock * kSize; line += 64) {
      _mm_prefetch(x + i * kSize + kAhead + line, _MM_HINT_T0);
    }
    const auto codes =
        block(x + i * kSize, kPerElement ? span.scales + i : nullptr, span.index + static_cast<std::uint32_t>(i), amax);
    if (span.stream) {
      Isa::stream(span.codes + i, codes);
    } else {
      Isa::store(span.codes + i, codes);
    }
  }
  if (i < span.n) cast_part<Isa, T, kPerElement>(span, i, span.n - i, block, amax);
  return Isa::template reduce_amax<T>(amax);
}

template <class Isa, FloatType T, Format F, bool kPerElement, bool kRoundProduct, bool kStochastic, bool kNaN>
std::uint32_t cast_run(const CastSpan& span) {
  Run<Isa> run;
  run.scale = Isa::set(kPerElement ? 1.0f : __builtin_fabsf(span.scales[0]));
  run.max = Isa::set(span.max);
  run.flush_below = Isa::set(span.flush_below);
  run.sign_flip = Isa::set(!kPerElement && __builtin_signbit(span.scales[0]) ? 0x80808080u : 0u);
  run.key0 = Isa::set(span.key0 ^ span.key0 >> 16);
  run.key1 = Isa::set(span.key1 ^ span.key1 >> 15);
  return cast_blocks<Isa, T, kPerElement>(
      span, [&](const char* x, const float* scales, std::uint32_t index,
                typename Isa::I& amax) __attribute__((always_inline)) {
        return cast_block<Isa, T, F, kPerElement, kRoundProduct, kStochastic, kNaN>(x, scales, index, run, amax);
      });
}

constexpr std::uint32_t bits_of_float(float x) { return __builtin_bit_cast(std::uint32_t, x); }

/// True if scale is 2^k, and not so far from 1 that bf16's subnormal or largest numbers times it could count.
inline bool is_plain_power(float scale) {
  return scale >= 0x1p-100f && scale <= 0x1p100f && (bits_of_float(scale) & 0x007FFFFFu) == 0;
}

/// bf16 times 2^k, to nearest, no NaN: in 16-bit lanes.
///
///   a = min(bits(|x|) + (k << 7), bits(max))          saturating, signed
///   f = a - (EMIN - 1 << 7), shifted so that its upper byte is the code, or if a is below EMIN
///       (1.mantissa) << (exponent - F0)               F0: where the shifted 1 is half of the smallest number
///   code = upper byte of f + 0x7F + its last bit
template <class Isa, Format F>
std::uint32_t cast_run_of_power(const CastSpan& span) {
  const auto shift = Isa::set16(static_cast<int>(bits_of_float(__builtin_fabsf(span.scales[0])) >> 16) - 0x3F80);
  const auto max = Isa::set16(static_cast<int>(bits_of_float(span.max) >> 16));
  const auto sign_flip = Isa::set(__builtin_signbit(span.scales[0]) ? 0x80808080u : 0u);
  return cast_blocks<Isa, FloatType::BF16, false>(
      span, [&](const char* x, const float*, std::uint32_t, typename Isa::I& amax)
                __attribute__((always_inline)) { return Isa::template nearest16<F>(x, shift, max, sign_flip, amax); });
}

/// One scale for the run: piece by piece, again with care for NaN where there was one.
template <class Isa, FloatType T, Format F, bool kRoundProduct, bool kStochastic, bool kOfPower = false>
std::uint32_t cast_pieces(const CastSpan& span) {
  CastSpan piece = span;
  std::uint32_t amax = 0;
  for (std::int64_t i = 0; i < span.n; i += piece.n) {
    piece.x = static_cast<const char*>(span.x) + i * bytes_per_element(T);
    piece.codes = span.codes + i;
    piece.n = kPiece - (reinterpret_cast<std::intptr_t>(piece.codes) & 63);  // the next one starts aligned
    if (piece.n > span.n - i) piece.n = span.n - i;
    if (kStochastic) piece.index = span.index + static_cast<std::uint32_t>(i);
    std::uint32_t found;
    if constexpr (kOfPower) {
      found = cast_run_of_power<Isa, F>(piece);
    } else {
      found = cast_run<Isa, T, F, false, kRoundProduct, kStochastic, false>(piece);
    }
    if (found > 0x7F800000u) cast_run<Isa, T, F, false, kRoundProduct, kStochastic, true>(piece);
    amax = amax > found ? amax : found;
  }
  return amax;
}

template <class Isa, FloatType T, Format F, bool kRoundProduct>
std::uint32_t cast_any(const CastSpan& span) {
  if (span.per_element) {
    return span.stochastic ? cast_run<Isa, T, F, true, kRoundProduct, true, true>(span)
                           : cast_run<Isa, T, F, true, kRoundProduct, false, true>(span);
  }
  // With any other scale a NaN product can come from an x that is none.
  const float scale = __builtin_fabsf(span.scales[0]);
  const bool plain = scale > 0.0f && scale < __builtin_inff();
  if (span.stochastic) {
    return plain && span.flush_below == 0.0f ? cast_pieces<Isa, T, F, kRoundProduct, true>(span)
                                             : cast_run<Isa, T, F, false, kRoundProduct, true, true>(span);
  }
  if constexpr (T == FloatType::BF16 && Isa::kCasts16) {  // such products need no rounding
    if (is_plain_power(scale)) return cast_pieces<Isa, T, F, false, false, true>(span);
  }
  if (plain) return cast_pieces<Isa, T, F, kRoundProduct, false>(span);
  return cast_run<Isa, T, F, false, kRoundProduct, false, true>(span);
}

template <class Isa, FloatType T, Format F>
std::uint32_t cast_span(const CastSpan& span) {
  std::uint32_t amax;
  if (T != FloatType::F32 && span.round_product) {  // an f32 product needs no rounding to f32
    amax = cast_any<Isa, T, F, T != FloatType::F32>(span);
  } else {
    amax = cast_any<Isa, T, F, false>(span);
  }
  if (span.stream) _mm_sfence();
  return amax;
}

template <class Isa>
constexpr CastKernels cast_kernels_of() {
  return {{
      {cast_span<Isa, FloatType::F32, Format::E4M3>, cast_span<Isa, FloatType::F32, Format::E5M2>},
      {cast_span<Isa, FloatType::BF16, Format::E4M3>, cast_span<Isa, FloatType::BF16, Format::E5M2>},
      {cast_span<Isa, FloatType::F16, Format::E4M3>, cast_span<Isa, FloatType::F16, Format::E5M2>},
  }};
}

// The decode of one run of codes. A block of two vectors of f32 lanes goes through f16 (decode.cpp), which vcvtph2ps
// widens exactly, subnormals included:
//
//   E4M3   h = (sign-extended code << 7) & 0xBFFF, a NaN code gets f16's quiet NaN; value = f32(h) * 2^8
//   E5M2   h = code << 8

template <class Isa>
FP8_INLINE void put(char* y, typename Isa::I x, bool stream) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(y);
  stream ? Isa::stream(bytes, x) : Isa::store(bytes, x);
}

template <class Isa, FloatType T, Format F>
FP8_INLINE void decode_block(const std::uint8_t* codes, typename Isa::V scale0, typename Isa::V scale1, char* y,
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
