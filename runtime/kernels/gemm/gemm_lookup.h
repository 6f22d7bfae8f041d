// SPDX-License-Identifier: Apache-2.0
// 64 codes -> 64 bf16 by two lookups in 128-byte tables (VBMI), exact for every code of either format, NaN included;
// and the folds of gemm_operands.h with AVX-512: values that are folded, the folds of weights in the lanes that they
// are for, and rows of activations. Included by units with flags of their own; everything is in an anonymous namespace
// so that no copy is shared.
#pragma once
#include <immintrin.h>

#include "fp8/runtime/kernels/gemm/gemm_kernels.h"

namespace fp8::kernels {
namespace {

struct Lookup {
  __m512i low0, low1, high0, high1;
  explicit Lookup(const CodeTables& tables) : Lookup(tables, tables.bf16_low) {}
  Lookup(const CodeTables& tables, const std::uint8_t* low)
      : low0(_mm512_load_si512(low)),
        low1(_mm512_load_si512(low + 64)),
        high0(_mm512_load_si512(tables.bf16_high)),
        high1(_mm512_load_si512(tables.bf16_high + 64)) {}

  // The lookup uses 7 bits of each code: the sign is left out for free.
  [[gnu::always_inline]] inline void line(__m512i codes, __m512i& lo, __m512i& hi) const {
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                     0xF8);  // high | (codes & 0x80)
    lo = _mm512_unpacklo_epi8(low, high);
    hi = _mm512_unpackhi_epi8(low, high);
  }
};

constexpr int kTileLines = kTileK / kLineK;

// Of values that have marks.
[[gnu::always_inline]] inline __m512i fold(__m512i values, __m512i folds) {
  const __mmask32 marked = _mm512_test_epi16_mask(values, _mm512_set1_epi16(1));
  return _mm512_mask_subs_epu16(values, marked, values, folds);
}

// The folds of the blocks from one on, for every kTileLines lines of a range: groups are of whole such lines, or there
// is one.
class FoldReader {
 public:
  FoldReader() = default;
  FoldReader(const MultiplyArgs& args, int block) {
    if (args.folds == nullptr) return;
    const std::int64_t lines = args.folds->lines, group = args.begin_line / lines;
    width_ = std::int64_t{args.blocks} * kBlockChannels;
    at_ = args.folds->folds + group * width_ + block * kBlockChannels;
    steps_ = steps_of(lines);
    left_ = steps_of((group + 1) * lines - args.begin_line);
  }
  [[gnu::always_inline]] inline const std::uint32_t* next() {
    if (left_ == 0) at_ += width_, left_ = steps_;
    --left_;
    return at_;
  }

 private:
  static std::int64_t steps_of(std::int64_t lines) { return (lines + kTileLines - 1) / kTileLines; }

  const std::uint32_t* at_ = nullptr;
  std::int64_t width_ = 0, steps_ = 0, left_ = 0;  // left: of at's group
};

// 16 x 16 of 32 bits.
[[gnu::always_inline]] inline void transpose(__m512i (&r)[16]) {
  __m512i pairs[16], quads[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)  // quads[i + j]: column 4 l + j of rows i .. i + 3 in part l
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(quads[j], quads[j + 4], 0x44),
                  low23 = _mm512_shuffle_i32x4(quads[j + 8], quads[j + 12], 0x44),
                  high01 = _mm512_shuffle_i32x4(quads[j], quads[j + 4], 0xEE),
                  high23 = _mm512_shuffle_i32x4(quads[j + 8], quads[j + 12], 0xEE);
    r[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    r[j + 4] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    r[j + 8] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    r[j + 12] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

[[gnu::always_inline]] inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1);
}

[[gnu::always_inline]] inline __m512i exponents(__m512i scales) {
  return _mm512_and_si512(_mm512_srli_epi32(scales, 23), _mm512_set1_epi32(0xFF));
}

// fold_of, each twice.
[[gnu::always_inline]] inline __m512i folds_of(__m512i scales, __m512i largest_exponent) {
  const __m512i steps = _mm512_sub_epi32(largest_exponent, exponents(scales));
  const __m512i fold = _mm512_or_si512(_mm512_slli_epi32(steps, 7), _mm512_set1_epi32(1));
  const __mmask16 zero = _mm512_testn_epi32_mask(scales, _mm512_set1_epi32(0x7FFFFFFF)),
                  far = _mm512_cmpgt_epi32_mask(steps, _mm512_set1_epi32(kMostFoldSteps));
  return _mm512_mask_mov_epi32(_mm512_or_si512(fold, _mm512_slli_epi32(fold, 16)), zero | far, _mm512_set1_epi32(-1));
}

// largest_scale
float largest_of(const float* scales, std::int64_t groups) {
  __m512i largest = _mm512_setzero_si512();
  for (std::int64_t g = 0; g < groups; g += 16)
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_maskz_loadu_epi32(first_lanes(groups - g), scales + g),
                                                         _mm512_set1_epi32(0x7FFFFFFF)));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(_mm512_reduce_max_epu32(largest)))));
}

// Of one block: folds [groups] rows `width` apart, largest [16].
void fold_block(const float* const* scales, std::int64_t groups, std::int64_t width, std::uint32_t* folds,
                float* largest) {
  bool same = true;
  for (int lane = 0; lane < kBlockChannels; ++lane) {
    same = same && scales[lane] == scales[0];
    largest[lane] = same ? largest[0] : 0.0f;
    if (lane == 0 || !same) largest[lane] = largest_of(scales[lane], groups);
  }
  const __m512i most = exponents(_mm512_castps_si512(_mm512_loadu_ps(largest)));
  for (std::int64_t g = 0; g < groups; g += 16) {
    const __mmask16 mask = first_lanes(groups - g);
    const int count = groups - g >= 16 ? 16 : static_cast<int>(groups - g);
    __m512i r[16];
    if (same) {
      alignas(64) std::uint32_t of_groups[16];
      _mm512_store_si512(of_groups, folds_of(_mm512_maskz_loadu_epi32(mask, scales[0] + g), most));
      for (int i = 0; i < count; ++i)
        _mm512_storeu_si512(folds + (g + i) * width, _mm512_set1_epi32(static_cast<int>(of_groups[i])));
      continue;
    }
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; ++lane) r[lane] = _mm512_maskz_loadu_epi32(mask, scales[lane] + g);
    transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if (i < count) _mm512_storeu_si512(folds + (g + i) * width, folds_of(r[i], most));
  }
}

void fold_scales(const float* const* scales, int blocks, std::int64_t groups, std::uint32_t* folds, float* largest) {
  for (int lane = 0; lane < blocks * kBlockChannels; lane += kBlockChannels)
    fold_block(scales + lane, groups, std::int64_t{blocks} * kBlockChannels, folds + lane, largest + lane);
}

// Values of a part of a tile, kTileK of a row at a time, as bf16 that have their folds in them.
class RowReader {
 public:
  explicit RowReader(const PartOfTile& part)
      : part_(part),
        lookup_(*part.tables, part.folds != nullptr ? part.tables->bf16_low_marked : part.tables->bf16_low) {}

  // Of row r, from k on; 0 behind k_end, and in rows that there are not.
  [[gnu::always_inline]] inline __m512i at(std::int64_t r, std::int64_t k) const {
    if (r >= part_.rows) return _mm512_setzero_si512();
    const std::int64_t left = part_.k_end - k;
    const __mmask32 mask = left >= kTileK ? ~0u : (1u << left) - 1;
    if (!part_.codes)
      return _mm512_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(part_.a) + r * part_.stride + k);
    const __m512i row = _mm512_castsi256_si512(
        _mm256_maskz_loadu_epi8(mask, static_cast<const std::uint8_t*>(part_.a) + r * part_.stride + k));
    const __m512i low = _mm512_permutex2var_epi8(lookup_.low0, row, lookup_.low1);
    __m512i high = _mm512_permutex2var_epi8(lookup_.high0, row, lookup_.high1);
    high = _mm512_ternarylogic_epi32(high, row, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    const __m512i values = _mm512_or_si512(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(low)),
                                           _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(high)), 8));
    if (part_.folds == nullptr) return values;
    const std::uint16_t of_group = part_.folds[r * part_.groups + k / part_.k_group - part_.k_begin / part_.k_group];
    return fold(values, _mm512_set1_epi16(static_cast<short>(of_group)));
  }

 private:
  const PartOfTile& part_;
  Lookup lookup_;
};

}  // namespace
}  // namespace fp8::kernels
