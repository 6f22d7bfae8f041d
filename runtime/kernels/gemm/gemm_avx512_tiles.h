// SPDX-License-Identifier: Apache-2.0
// The innermost loops of gemm_avx512.h: sums of R rows x NB blocks of 16 channels in registers, over a range of k.
//
//   Decode::line     64 codes -> lo, hi: 32 bf16 each, lane = channel: lo = (k0, k1) pairs, hi = (k2, k3) pairs
//   Decode::alike    how many of the lines that come next are decoded alike; of_block: the blocks from one on
//   Product::expand  lo, hi -> kSteps vectors;  Product::add  acc += vector . broadcast of one 4-byte item of x
//   Product::kShare  a load broadcasts that item once for all blocks; else each product's own load does
#pragma once
#include <immintrin.h>

#include "fp8/runtime/kernels/gemm/gemm_kernels.h"

namespace fp8::kernels {
namespace {

constexpr int kFewRows = 4;     // rows of A in a tile: fewer than memory can be kept busy with,
constexpr int kSomeRows = 10;   // as many as leave registers for decoding two blocks,
constexpr int kPanelTile = 14;  // and as many as leave registers for nothing else

// A Decode of which all lines are.
template <class Codes>
struct Uniform : Codes {
  using Codes::Codes;
  Uniform of_block(const MultiplyArgs&, int) const { return *this; }
  [[gnu::always_inline]] inline std::int64_t alike(std::int64_t lines) const { return lines; }
  [[gnu::always_inline]] inline void line(__m512i codes, int, __m512i& lo, __m512i& hi) const {
    Codes::line(codes, lo, hi);
  }
};

// Of a tile's row: an item of x in all lanes. By asm: of a load that it may move, GCC makes one for several steps, and
// spills sums.
[[gnu::always_inline]] inline __m512 broadcast(const float* item) {
  __m512 lanes;
  asm("vbroadcastss %1, %0" : "=v"(lanes) : "m"(*item));
  return lanes;
}

// f32 products: a bf16 in the high half of a lane is that f32; x stays f32.
struct SumF32 {
  static constexpr bool kShare = false;
  static constexpr int kSteps = 4;
  [[gnu::always_inline]] static inline void expand(__m512i lo, __m512i hi, __m512 (&w)[kSteps]) {
    const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(lo, high_half));
    w[2] = _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16));
    w[3] = _mm512_castsi512_ps(_mm512_and_si512(hi, high_half));
  }
  [[gnu::always_inline]] static inline __m512 add(__m512 acc, __m512 w, const float* item) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*item));
    return acc;
  }
  [[gnu::always_inline]] static inline __m512 add(__m512 acc, __m512 w, __m512 item) {
    return _mm512_fmadd_ps(w, item, acc);
  }
};

// Of wide_datapath(): there each product's own load would be the limit, with two loads a cycle and as many products.
// Where products are computed in halves, they take as long as their loads.
template <class Product>
struct Shared : Product {
  static constexpr bool kShare = true;
};

// acc[b] += w[b] . item for NB blocks.
template <class Product, int NB>
[[gnu::always_inline]] inline void add_item(__m512 (&acc)[NB], const __m512 (&w)[NB], const float* item) {
  if constexpr (Product::kShare && NB > 1) {
    const __m512 lanes = broadcast(item);
#pragma GCC unroll 4
    for (int b = 0; b < NB; ++b) acc[b] = Product::add(acc[b], w[b], lanes);
  } else {
#pragma GCC unroll 4
    for (int b = 0; b < NB; ++b) acc[b] = Product::add(acc[b], w[b], item);
  }
}

// 16 rows x 64 codes -> 16 lines. Two rounds of 16-bit unpacks bring 4 rows into packed order within each 16-byte part
// (part l of vector q = line 4l + q), two rounds of part shuffles collect the four groups of rows.
[[gnu::always_inline]] inline void pack_square(const __m512i (&rows)[16], std::uint8_t* lines) {
  __m512i part[4][4];  // [group of 4 channels][q]
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i r0 = rows[4 * g], r1 = rows[4 * g + 1], r2 = rows[4 * g + 2], r3 = rows[4 * g + 3];
    const __m512i even_lo = _mm512_unpacklo_epi16(r0, r2), even_hi = _mm512_unpackhi_epi16(r0, r2);
    const __m512i odd_lo = _mm512_unpacklo_epi16(r1, r3), odd_hi = _mm512_unpackhi_epi16(r1, r3);
    part[g][0] = _mm512_unpacklo_epi16(even_lo, odd_lo);
    part[g][1] = _mm512_unpackhi_epi16(even_lo, odd_lo);
    part[g][2] = _mm512_unpacklo_epi16(even_hi, odd_hi);
    part[g][3] = _mm512_unpackhi_epi16(even_hi, odd_hi);
  }
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const __m512i a01 = _mm512_shuffle_i32x4(part[0][q], part[1][q], 0x44),
                  a23 = _mm512_shuffle_i32x4(part[2][q], part[3][q], 0x44);
    const __m512i b01 = _mm512_shuffle_i32x4(part[0][q], part[1][q], 0xEE),
                  b23 = _mm512_shuffle_i32x4(part[2][q], part[3][q], 0xEE);
    _mm512_storeu_si512(lines + (0 + q) * kLineBytes, _mm512_shuffle_i32x4(a01, a23, 0x88));
    _mm512_storeu_si512(lines + (4 + q) * kLineBytes, _mm512_shuffle_i32x4(a01, a23, 0xDD));
    _mm512_storeu_si512(lines + (8 + q) * kLineBytes, _mm512_shuffle_i32x4(b01, b23, 0x88));
    _mm512_storeu_si512(lines + (12 + q) * kLineBytes, _mm512_shuffle_i32x4(b01, b23, 0xDD));
  }
}

// MultiplyArgs::group, as one tile and the blocks from one on see it.
struct TileScales {
  const GroupScales* group;
  std::int64_t begin_line;
  const float *lane_scale = nullptr, *a_scale = nullptr;
  int rows = 0;  // valid ones
  float* total = nullptr;

  TileScales(const MultiplyArgs& args, std::int64_t tile, int block) : group(args.group), begin_line(args.begin_line) {
    if (group == nullptr) return;
    const std::int64_t first = tile * args.plan.tile_rows, left = group->rows - first;
    lane_scale = group->lane_scale + block * kBlockChannels;
    if (group->a_scale != nullptr) a_scale = group->a_scale + first * group->groups;
    rows = static_cast<int>(left < args.plan.tile_rows ? left : args.plan.tile_rows);
    total = group->total + (first * args.blocks + block) * kBlockChannels;
  }
  const TileScales* or_none() const { return group != nullptr ? this : nullptr; }

  // Calls add(lines) for the parts of [at, at + lines) that lie in one group each and end(g) where a group ends.
  // Returns whether sums are left over.
  template <class Add, class End>
  [[gnu::always_inline]] inline bool for_groups(std::int64_t at, std::int64_t lines, const Add& add,
                                                const End& end) const {
    std::int64_t g = at / group->lines, left = (g + 1) * group->lines - at;  // in this group
    while (lines > 0) {
      const std::int64_t n = lines < left ? lines : left;
      add(n);
      at += n, lines -= n, left -= n;
      if (left == 0 || at == group->all_lines) end(g++), left = group->lines;
    }
    return left != group->lines;
  }
};

// Memory fetches this meanwhile, of the first block: `step` bytes further with each line of codes.
struct Ahead {
  const std::uint8_t* at;
  std::int64_t step;
};

// The running sums of R rows x NB blocks, in registers.
template <int R, int NB>
struct Sums {
  __m512 c[R][NB];

  [[gnu::always_inline]] inline void load(const float* acc, std::int64_t acc_stride, bool first) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b)
        c[r][b] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * acc_stride + b * kBlockChannels);
  }
  [[gnu::always_inline]] inline void store(float* acc, std::int64_t acc_stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) _mm512_storeu_ps(acc + r * acc_stride + b * kBlockChannels, c[r][b]);
  }

  [[gnu::always_inline]] inline void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) c[r][b] = _mm512_setzero_ps();
  }

  // The end of group g: scales.total += the sums * (a_scale * lane_scale), in two roundings; the sums begin anew.
  [[gnu::always_inline]] inline void end_group(const TileScales& scales, std::int64_t g, std::int64_t stride) {
    const std::int64_t groups = scales.group->groups;
    __m512 w[NB];
#pragma GCC unroll 4
    for (int b = 0; b < NB; ++b) w[b] = _mm512_loadu_ps(scales.lane_scale + g * stride + b * kBlockChannels);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float a = scales.a_scale != nullptr ? scales.a_scale[(r < scales.rows ? r : 0) * groups + g] : 1.0f;
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) {
        float* total = scales.total + r * stride + b * kBlockChannels;
        const __m512 scaled = _mm512_mul_ps(c[r][b], _mm512_mul_ps(_mm512_set1_ps(a), w[b]));
        _mm512_storeu_ps(total, g == 0 ? scaled : _mm512_add_ps(_mm512_loadu_ps(total), scaled));
      }
    }
    clear();
  }

  // += `lines` lines of each block, decoded on the fly. Returns the first item of x that is not read yet.
  template <class Product, bool kPrefetch, class Decode>
  [[gnu::always_inline]] inline const float* add_lines(Decode& decode, const std::uint8_t* p, std::int64_t block_stride,
                                                       std::int64_t lines, Ahead& ahead, const float* x) {
    while (lines > 0) {
      const std::int64_t alike = decode.alike(lines);
      for (std::int64_t q = 0; q < alike; ++q, p += kLineBytes, ahead.at += ahead.step, x += Product::kSteps * R) {
        __m512 w[Product::kSteps][NB];
#pragma GCC unroll 4
        for (int b = 0; b < NB; ++b) {
          // To L1, but not for few rows on narrow datapaths: they wait for memory, and take a fifth longer then.
          constexpr auto kHint = R <= 2 && !Product::kShare ? _MM_HINT_T1 : _MM_HINT_T0;
          if constexpr (kPrefetch) _mm_prefetch(reinterpret_cast<const char*>(ahead.at + b * block_stride), kHint);
          __m512i lo, hi;
          __m512 steps[Product::kSteps];
          decode.line(_mm512_loadu_si512(p + b * block_stride), b, lo, hi);
          Product::expand(lo, hi, steps);
#pragma GCC unroll 4
          for (int s = 0; s < Product::kSteps; ++s) w[s][b] = steps[s];
        }
#pragma GCC unroll 4
        for (int s = 0; s < Product::kSteps; ++s)
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) add_item<Product>(c[r], w[s], x + s * R + r);
      }
      lines -= alike;
    }
    return x;
  }
};

// acc (R rows x NB blocks) += lines . x. Consecutive rows of acc lie acc_stride floats apart. With scales, the sums of
// whole groups go to their total instead.
template <class Decode, class Product, int R, int NB>
void multiply_lines(Decode decode, const std::uint8_t* p, std::int64_t block_stride, std::int64_t lines, Ahead ahead,
                    const float* x, float* acc, std::int64_t acc_stride, bool first, const TileScales* scales) {
  Sums<R, NB> sums;
  sums.load(acc, acc_stride, first);
  if (scales == nullptr) {
    sums.template add_lines<Product, true>(decode, p, block_stride, lines, ahead, x);
    return sums.store(acc, acc_stride);
  }
  const bool left_over = scales->for_groups(
      scales->begin_line, lines,
      [&](std::int64_t n) {
        x = sums.template add_lines<Product, true>(decode, p, block_stride, n, ahead, x);
        p += n * kLineBytes;
      },
      [&](std::int64_t g) { sums.end_group(*scales, g, acc_stride); });
  if (left_over) sums.store(acc, acc_stride);
}

// multiply_lines straight from row-major weights, 64 k at a time: 16 NB rows are read as that many streams, which keeps
// memory as busy as one stream does (several lines of a row in turn, or more scratch than this, halve it).
template <class Decode, class Product, int R, int NB>
void multiply_rows(Decode decode, const std::uint8_t* w, std::int64_t row_stride, std::int64_t k, std::int64_t prefetch,
                   const float* x, float* acc, std::int64_t acc_stride, bool first, const TileScales* scales) {
  alignas(64) std::uint8_t lines[NB][16 * kLineBytes];
  Ahead none{};
  Sums<R, NB> sums;
  sums.load(acc, acc_stride, first);
  for (std::int64_t k0 = 0; k0 < k; k0 += 64) {
    const std::int64_t left = k - k0;
    const __mmask64 mask = left >= 64 ? ~0ull : (1ull << left) - 1;
    for (int b = 0; b < NB; ++b) {
      const std::uint8_t* row = w + b * kBlockChannels * row_stride + k0;
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i, row += row_stride) {
        _mm_prefetch(reinterpret_cast<const char*>(row + prefetch),
                     _MM_HINT_T1);  // to L2: rows 2^n apart share one set of L1
        r[i] = _mm512_maskz_loadu_epi8(mask, row);
      }
      pack_square(r, lines[b]);
    }
    const std::int64_t count = left >= 64 ? 16 : (left + 3) / 4;
    if (scales == nullptr) {
      x = sums.template add_lines<Product, false>(decode, lines[0], 16 * kLineBytes, count, none, x);
      continue;
    }
    const std::uint8_t* p = lines[0];
    scales->for_groups(
        scales->begin_line + k0 / kLineK, count,
        [&](std::int64_t n) {
          x = sums.template add_lines<Product, false>(decode, p, 16 * kLineBytes, n, none, x);
          p += n * kLineBytes;
        },
        [&](std::int64_t g) { sums.end_group(*scales, g, acc_stride); });
  }
  if (scales == nullptr) sums.store(acc, acc_stride);  // groups are whole: all of k is here
}

// Panel of two blocks: [line][step][block] vectors.
template <class Decode, class Product>
void decode_panel(Decode decode, const MultiplyArgs& args, const std::uint8_t* p) {
  float* out = static_cast<float*>(args.panel);
  for (std::int64_t lines = args.range_lines, alike; lines > 0; lines -= alike) {
    alike = decode.alike(lines);
    for (std::int64_t q = 0; q < alike; ++q, p += kLineBytes, out += Product::kSteps * 32)
      for (int b = 0; b < 2; ++b) {
        const std::uint8_t* line = p + b * args.block_stride;
        _mm_prefetch(reinterpret_cast<const char*>(line + args.prefetch / 2), _MM_HINT_T0);
        __m512i lo, hi;
        __m512 w[Product::kSteps];
        decode.line(_mm512_loadu_si512(line), b, lo, hi);
        Product::expand(lo, hi, w);
        for (int s = 0; s < Product::kSteps; ++s) _mm512_store_ps(out + (s * 2 + b) * 16, w[s]);
      }
  }
}

// multiply_lines from a panel.
template <class Product, int R>
void multiply_panel(const float* w, std::int64_t lines, const float* x, float* acc, std::int64_t acc_stride, bool first,
                    const TileScales* scales) {
  Sums<R, 2> sums;
  sums.load(acc, acc_stride, first);
  const auto add = [&](std::int64_t n) __attribute__((always_inline)) {
    for (std::int64_t s = 0; s < n * Product::kSteps; ++s, w += 32, x += R) {
      const __m512 both[2] = {_mm512_load_ps(w), _mm512_load_ps(w + 16)};
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) add_item<Product>(sums.c[r], both, x + r);
    }
  };
  if (scales == nullptr) {
    add(lines);
    return sums.store(acc, acc_stride);
  }
  const bool left_over = scales->for_groups(scales->begin_line, lines, add,
                                            [&](std::int64_t g) { sums.end_group(*scales, g, acc_stride); });
  if (left_over) sums.store(acc, acc_stride);
}

}  // namespace
}  // namespace fp8::kernels
