// SPDX-License-Identifier: Apache-2.0
// Between cast.cpp, which knows matrices, threads and levels, and the code of each level, which casts one run of
// elements. Only PODs and plain functions: cast_avx*.cpp are compiled with instruction sets that the machine may not
// have, so they may share no inline function with the rest of the library.
//
// Stochastic rounding adds 32 random bits below the last kept bit and truncates. They are a function of (seed, element
// index) alone, with i = index % 2^32 and the two key words drawn from (seed, index / 2^32):
//
//   h = i ^ key0;  h ^= h >> 16;  h *= 0x7feb352d;  h ^= key1;  h ^= h >> 15;  h *= 0x846ca68b;  h ^= h >> 16
//
// Magnitudes below flush_below count as 0 before that.
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

struct ScaleLayout;

/// What the casts know of a format.
template <Format F>
struct Magic {                                             // E4M3
  static constexpr int kMantissa = 3, kMinExponent = 121;  // biased exponent of 2^-6
  static constexpr float kRound = 0x1p20f + 7.0f;          // see cast_loop.h
  static constexpr float kSubnormalToFixed = 0x1p29f;      // 2^-9 -> 1.0 with 20 fraction bits
};
template <>
struct Magic<Format::E5M2> {
  static constexpr int kMantissa = 2, kMinExponent = 113;  // 2^-14
  static constexpr float kRound = 0x1p21f + 15.0f;
  static constexpr float kSubnormalToFixed = 0x1p37f;  // 2^-16 -> 1.0 with 21 fraction bits
};

/// One run of contiguous elements.
struct CastSpan {
  const void* x;  // [n]
  std::int64_t n;
  std::uint8_t* codes;       // [n]
  const float* scales;       // one value, or n with per_element
  float max;                 // saturation, a value of the format
  std::uint32_t key0, key1;  // stochastic: see above
  std::uint32_t index;       // stochastic: index of x[0]; index + n does not pass 2^32
  float flush_below;         // stochastic: see above, 0 for none
  bool per_element;
  bool round_product;
  bool stochastic;
  bool stream;  // store around the caches
};

/// Casts the run; returns the largest magnitude of x as the bits of a float (NaN sorts above infinity).
using CastKernel = std::uint32_t (*)(const CastSpan& span);

struct CastKernels {
  CastKernel of[3][2];  // [FloatType][Format]
};

/// The cast of the level in force.
CastKernel cast_kernel_in_force(FloatType type, Format format);

/// Casts `span`, whose x[0] is element `index` of the tensor: sets key0, key1 and index where span.stochastic, and cuts
/// where the index passes a multiple of 2^32. Returns what the kernel does.
std::uint32_t cast_span_at(CastKernel kernel, FloatType type, CastSpan span, std::uint64_t seed, std::int64_t index);

/// Throws std::invalid_argument unless max is a value of the format that every kernel handles: one from 2^-6 up to the
/// format's largest.
void check_cast_max(const char* what, Format format, float max);
/// Throws std::invalid_argument unless the layout has blocks (its scales lie along rows).
void check_blocks(const char* what, const ScaleLayout& layout);
void check_along_rows(const char* what, const ScaleLayout& layout);

extern const CastKernels kCastScalar;
#if defined(__x86_64__)
extern const CastKernels kCastAvx2;
extern const CastKernels kCastAvx512;
extern const CastKernels kCastAvx512Vbmi;
#endif

// Between decode.cpp, which knows matrices, threads and levels, and the code of each level, which decodes one run. Only
// PODs and plain functions, as above.

/// One run of contiguous codes.
struct DecodeSpan {
  const std::uint8_t* codes;  // [n]
  std::int64_t n;
  void* y;              // [n]
  const float* scales;  // one value, or n with per_element
  bool per_element;
  bool stream;  // store around the caches
};

using DecodeKernel = void (*)(const DecodeSpan& span);

struct DecodeKernels {
  DecodeKernel of[3][2];  // [FloatType][Format]
};

/// The decode of the level in force.
DecodeKernel decode_kernel_in_force(FloatType type, Format format);

/// y[i] = entries[codes[i] & 0x7F], sign bit flipped where the code's is set: one scale for the whole run, folded into
/// the table. 16-bit outputs only.
using TableDecodeKernel = void (*)(const DecodeSpan& span, const std::uint16_t* entries);

/// A decode code by code from a table of 256 values: the bits that every level gives.
void decode_by_table(const DecodeSpan& span, FloatType type, const float* table);

extern const DecodeKernels kDecodeScalar;
#if defined(__x86_64__)
extern const DecodeKernels kDecodeAvx2;
extern const DecodeKernels kDecodeAvx512;
extern const TableDecodeKernel kTableDecodeAvx512Vbmi;
#endif

}  // namespace fp8::kernels
