// SPDX-License-Identifier: Apache-2.0
// The cast for level avx512bf16, whose CPUs permute single bytes across two vectors (VBMI); see cast_avx512.h.
//
// The decode by table: two tables of 128 bytes, the low and the high byte of each code's 16-bit value with the scale
// folded in, so that any format, scale and rounding costs the same seven instructions per 64 codes.
//
//   l = vpermi2b(codes; L0, L1)   the index is the low 7 bits: the sign is ignored for free
//   h = vpermi2b(codes; H0, H1)
//   h ^= codes & 0x80
//   unpack l, h                   2 x 32 values; the codes are permuted first so that these are in order
#include "fp8/runtime/kernels/cast/cast_avx512.h"

namespace fp8::kernels {
namespace {

constexpr int kBlock = 64;

struct Tables {
  __m512i low[2], high[2];
};

FP8_INLINE Tables split(const std::uint16_t* entries) {
  alignas(64) std::uint8_t low[128], high[128];
  for (int i = 0; i < 128; ++i) {
    low[i] = static_cast<std::uint8_t>(entries[i]);
    high[i] = static_cast<std::uint8_t>(entries[i] >> 8);
  }
  return {{_mm512_load_si512(low), _mm512_load_si512(low + 64)},
          {_mm512_load_si512(high), _mm512_load_si512(high + 64)}};
}

FP8_INLINE void look_up_block(const std::uint8_t* codes, const Tables& tables, char* y, bool stream) {
  const __m512i c = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(codes));
  const __m512i l = _mm512_permutex2var_epi8(tables.low[0], c, tables.low[1]);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.high[0], c, tables.high[1]);
  // a ^ (b & c)
  const __m512i h = _mm512_ternarylogic_epi32(magnitude, c, _mm512_set1_epi32(static_cast<int>(0x80808080u)), 0x78);
  const __m512i y0 = _mm512_unpacklo_epi8(l, h), y1 = _mm512_unpackhi_epi8(l, h);
  if (stream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y), y0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y + 64), y1);
  } else {
    _mm512_storeu_si512(y, y0);
    _mm512_storeu_si512(y + 64, y1);
  }
}

void look_up_span(const DecodeSpan& span, const std::uint16_t* entries) {
  const Tables tables = split(entries);
  char* y = static_cast<char*>(span.y);
  const bool stream = span.stream && (reinterpret_cast<std::uintptr_t>(y) & 63) == 0;
  std::int64_t i = 0;
  for (; i + kBlock <= span.n; i += kBlock) {
    _mm_prefetch(reinterpret_cast<const char*>(span.codes + i) + 4096, _MM_HINT_T0);
    look_up_block(span.codes + i, tables, y + 2 * i, stream);
  }
  if (i < span.n) {  // through buffers, so that nothing outside the run is touched
    const std::size_t rest = static_cast<std::size_t>(span.n - i);
    alignas(64) std::uint8_t codes[kBlock] = {};
    alignas(64) char out[2 * kBlock];
    __builtin_memcpy(codes, span.codes + i, rest);
    look_up_block(codes, tables, out, false);
    __builtin_memcpy(y + 2 * i, out, 2 * rest);
  }
  if (stream) _mm_sfence();
}

}  // namespace

extern const CastKernels kCastAvx512Vbmi = cast_kernels_of<Avx512<true>>();
extern const TableDecodeKernel kTableDecodeAvx512Vbmi = look_up_span;

}  // namespace fp8::kernels
