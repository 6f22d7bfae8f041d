// SPDX-License-Identifier: Apache-2.0
// The gemm kernels of both AVX-512 levels, as templates over how a line is decoded and how products are summed.
// Included by one unit per level, each with its own flags; everything is in an anonymous namespace so that no copy is
// shared.
//
//   Decode::line     64 codes -> lo, hi: 32 bf16 each, lane = channel: lo = (k0, k1) pairs, hi = (k2, k3) pairs
//   Product::expand  lo, hi -> kSteps vectors;  Product::add  acc += vector . broadcast of one 4-byte item of x
//
// One accumulator per (row, channel), k ascending: the same chain for every tile size (see gemm_kernels.h).
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "fp8/runtime/kernels/gemm_kernels.h"
#include "fp8/runtime/kernels/gemm_scale-inl.h"

namespace fp8::kernels {
namespace {

constexpr int kFewRows = 4;     // rows of A in a tile: fewer than memory can be kept busy with,
constexpr int kSomeRows = 10;   // as many as leave registers for decoding two blocks,
constexpr int kPanelTile = 14;  // and as many as leave registers for nothing else

// f32 products: a bf16 in the high half of a lane is that f32; x stays f32.
struct SumF32 {
  static constexpr int kSteps = 4;
  [[gnu::always_inline]] static inline void expand(__m512i lo, __m512i hi, __m512 (&w)[kSteps]) {
    const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(lo, high_half));
    w[2] = _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16));
    w[3] = _mm512_castsi512_ps(_mm512_and_si512(hi, high_half));
  }
  [[gnu::always_inline]] static inline __m512 add(__m512 acc, __m512 w, const float* item) {
    return _mm512_fmadd_ps(w, _mm512_set1_ps(*item), acc);
  }
};

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

  // += `lines` lines of each block, decoded on the fly. Returns where x goes on.
  template <class Product, bool kPrefetch, class Decode>
  [[gnu::always_inline]] inline const float* add_lines(const Decode& decode, const std::uint8_t* p,
                                                       std::int64_t block_stride, std::int64_t lines,
                                                       std::int64_t prefetch, const float* x) {
    for (std::int64_t q = 0; q < lines; ++q, p += kLineBytes, x += Product::kSteps * R) {
      __m512 w[NB][Product::kSteps];
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) {
        const std::uint8_t* line = p + b * block_stride;
        if constexpr (kPrefetch)
          _mm_prefetch(reinterpret_cast<const char*>(line + prefetch), _MM_HINT_T1);  // to L1 it takes a fifth longer
        __m512i lo, hi;
        decode.line(_mm512_loadu_si512(line), lo, hi);
        Product::expand(lo, hi, w[b]);
      }
#pragma GCC unroll 4
      for (int s = 0; s < Product::kSteps; ++s)
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int b = 0; b < NB; ++b) c[r][b] = Product::add(c[r][b], w[b][s], x + s * R + r);
    }
    return x;
  }
};

// acc (R rows x NB blocks) += lines . x. Consecutive rows of acc lie acc_stride floats apart.
template <class Decode, class Product, int R, int NB>
void multiply_lines(const Decode& decode, const std::uint8_t* p, std::int64_t block_stride, std::int64_t lines,
                    std::int64_t prefetch, const float* x, float* acc, std::int64_t acc_stride, bool first) {
  Sums<R, NB> sums;
  sums.load(acc, acc_stride, first);
  sums.template add_lines<Product, true>(decode, p, block_stride, lines, prefetch, x);
  sums.store(acc, acc_stride);
}

// The same straight from row-major weights, 64 k at a time: 16 NB rows are read as that many streams, which keeps
// memory as busy as one stream does (several lines of a row in turn, or more scratch than this, halve it).
template <class Decode, class Product, int R, int NB>
void multiply_rows(const Decode& decode, const std::uint8_t* w, std::int64_t row_stride, std::int64_t k,
                   std::int64_t prefetch, const float* x, float* acc, std::int64_t acc_stride, bool first) {
  alignas(64) std::uint8_t lines[NB][16 * kLineBytes];
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
    x = sums.template add_lines<Product, false>(decode, lines[0], 16 * kLineBytes, left >= 64 ? 16 : (left + 3) / 4, 0,
                                                x);
  }
  sums.store(acc, acc_stride);
}

// Panel of two blocks: [line][step][block] vectors.
template <class Decode, class Product>
void decode_panel(const Decode& decode, const MultiplyArgs& args, const std::uint8_t* p) {
  float* out = static_cast<float*>(args.panel);
  for (std::int64_t q = 0; q < args.range_lines; ++q, p += kLineBytes)
    for (int b = 0; b < 2; ++b) {
      const std::uint8_t* line = p + b * args.block_stride;
      _mm_prefetch(reinterpret_cast<const char*>(line + args.prefetch / 2), _MM_HINT_T0);
      __m512i lo, hi;
      __m512 w[Product::kSteps];
      decode.line(_mm512_loadu_si512(line), lo, hi);
      Product::expand(lo, hi, w);
      for (int s = 0; s < Product::kSteps; ++s) _mm512_store_ps(out + ((q * Product::kSteps + s) * 2 + b) * 16, w[s]);
    }
}

template <class Product, int R>
void multiply_panel(const float* w, std::int64_t steps, const float* x, float* acc, std::int64_t acc_stride,
                    bool first) {
  __m512 c[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    c[r][0] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * acc_stride);
    c[r][1] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * acc_stride + kBlockChannels);
  }
  for (std::int64_t s = 0; s < steps; ++s, w += 32, x += R) {
    const __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      c[r][0] = Product::add(c[r][0], w0, x + r);
      c[r][1] = Product::add(c[r][1], w1, x + r);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(acc + r * acc_stride, c[r][0]);
    _mm512_storeu_ps(acc + r * acc_stride + kBlockChannels, c[r][1]);
  }
}

template <class Decode, class Product>
struct Kernel {
  using Fused = void (*)(const Decode&, const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t, const float*,
                         float*, std::int64_t, bool);
  using Panel = void (*)(const float*, std::int64_t, const float*, float*, std::int64_t, bool);

  // The function for `rows` rows, R <= rows <= Most.
  template <int NB, int Most, int R = 1>
  static Fused on_lines(int rows) {
    if constexpr (R == Most)
      return multiply_lines<Decode, Product, R, NB>;
    else
      return rows == R ? multiply_lines<Decode, Product, R, NB> : on_lines<NB, Most, R + 1>(rows);
  }
  template <int NB, int R = 1>
  static Fused on_rows(int rows) {
    if constexpr (R == kFewRows)
      return multiply_rows<Decode, Product, R, NB>;
    else
      return rows == R ? multiply_rows<Decode, Product, R, NB> : on_rows<NB, R + 1>(rows);
  }
  template <int R = kPanelTile / 2>
  static Panel on_panel(int rows) {
    if constexpr (R == kPanelTile)
      return multiply_panel<Product, R>;
    else
      return rows == R ? multiply_panel<Product, R> : on_panel<R + 1>(rows);
  }

  // Blocks [block, block + count) with one function, every tile.
  static void fused(const Decode& decode, const MultiplyArgs& args, Fused function, int block, int count) {
    const int rows = args.plan.tile_rows;
    const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kBlockChannels;
    const float* x = static_cast<const float*>(args.x);
    float* acc = args.acc + block * kBlockChannels;
    for (std::int64_t t = 0; t < args.tiles; ++t) {
      function(decode, args.lines + block * args.block_stride, args.block_stride, args.range_lines,
               args.prefetch / count, x, acc, acc_stride, args.first);
      x += args.x_tile_stride / 4;
      acc += rows * acc_stride;
    }
  }

  static void panel(const Decode& decode, const MultiplyArgs& args, int block) {
    const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kBlockChannels;
    decode_panel<Decode, Product>(decode, args, args.lines + block * args.block_stride);
    const Panel function = on_panel(args.plan.tile_rows);
    const float* x = static_cast<const float*>(args.x);
    float* acc = args.acc + block * kBlockChannels;
    for (std::int64_t t = 0; t < args.tiles; ++t, x += args.x_tile_stride / 4, acc += args.plan.tile_rows * acc_stride)
      function(static_cast<const float*>(args.panel), args.range_lines * Product::kSteps, x, acc, acc_stride,
               args.first);
  }

  static void multiply(const Decode& decode, const MultiplyArgs& args) {
    const int rows = args.plan.tile_rows;
    int block = 0;
    if (args.plan.panel) {
      for (; block + 2 <= args.blocks; block += 2) panel(decode, args, block);
    } else if (args.plan.blocks == 4) {
      for (; block + 4 <= args.blocks; block += 4) fused(decode, args, on_lines<4, kFewRows>(rows), block, 4);
    } else {
      for (; block + 2 <= args.blocks; block += 2) fused(decode, args, on_lines<2, kSomeRows>(rows), block, 2);
    }
    for (; block < args.blocks; ++block) fused(decode, args, on_lines<1, kPanelTile>(rows), block, 1);
  }

  static void multiply_row_major(const Decode& decode, const MultiplyArgs& args) {
    const int rows = args.plan.tile_rows;
    const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kBlockChannels;
    const Fused one = on_rows<1>(rows), several = args.plan.blocks == 4 ? on_rows<4>(rows) : on_rows<2>(rows);
    for (int block = 0; block < args.blocks;) {
      const int count = block + args.plan.blocks <= args.blocks ? args.plan.blocks : 1;
      (count == 1 ? one : several)(decode, args.lines + block * kBlockChannels * args.row_stride, args.row_stride,
                                   args.k, args.prefetch, static_cast<const float*>(args.x),
                                   args.acc + block * kBlockChannels, acc_stride, args.first);
      block += count;
    }
  }
};

inline constexpr std::int64_t kPackedPrefetch = 4096;

// m rows as evenly as possible in tiles of at most `most`.
inline int even_tile(std::int64_t m, int most) {
  const std::int64_t tiles = (m + most - 1) / most;
  return static_cast<int>((m + tiles - 1) / tiles);
}

// Few rows: several blocks at once, so that independent sums hide the latency of the adds. Some: two blocks, decoded
// again for each tile. Many: two blocks decoded once to a panel.
inline GemmPlan plan_rows(std::int64_t m, int few_rows_blocks, int panel_lines) {
  GemmPlan plan;
  plan.blocks = 2;
  if (m <= kFewRows) {
    plan.tile_rows = static_cast<int>(m);
    plan.blocks = m <= 2 ? 4 : few_rows_blocks;
    plan.range_lines = 64;
    plan.packed_range_lines = 4096;
  } else if (m <= 2 * kSomeRows) {
    plan.tile_rows = even_tile(m, kSomeRows);
    plan.range_lines = plan.packed_range_lines = 128;
  } else {
    plan.tile_rows = even_tile(m, kPanelTile);
    plan.range_lines = plan.packed_range_lines = panel_lines;
    plan.panel = true;
  }
  return plan;
}

constexpr std::int64_t kPanelBytes = 32768;

void pack_lines(const std::uint8_t* w, std::int64_t row_stride, int rows, std::int64_t k, std::int64_t prefetch,
                std::uint8_t* lines) {
  std::int64_t k0 = 0;
  if (rows == 16) {
    for (; k0 + 64 <= k; k0 += 64, lines += 16 * kLineBytes) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        // To L2: rows a power of two apart share one set of L1.
        _mm_prefetch(reinterpret_cast<const char*>(w + i * row_stride + k0 + prefetch), _MM_HINT_T1);
        r[i] = _mm512_loadu_si512(w + i * row_stride + k0);
      }
      pack_square(r, lines);
    }
  }
  for (; k0 < k; k0 += 64, lines += 16 * kLineBytes) {
    const std::int64_t left = k - k0;
    const __mmask64 mask = left >= 64 ? ~0ull : (1ull << left) - 1;
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      r[i] = i < rows ? _mm512_maskz_loadu_epi8(mask, w + i * row_stride + k0) : _mm512_setzero_si512();
    if (left > 60) {
      pack_square(r, lines);
      continue;
    }
    alignas(64) std::uint8_t square[16 * kLineBytes];
    pack_square(r, square);
    for (std::int64_t q = 0; q < (left + 3) / 4; ++q)
      _mm512_storeu_si512(lines + q * kLineBytes, _mm512_load_si512(square + q * kLineBytes));
  }
}

// 16 values of a bias or of y, as f32; lanes outside the mask are not read.
[[gnu::always_inline]] inline __m512 load_values(const void* base, FloatType type, std::int64_t index, __mmask16 mask) {
  if (type == FloatType::F32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(base) + index);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(base) + index);
  if (type == FloatType::BF16) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return _mm512_cvtph_ps(half);
}

// f32 -> bf16, RNE in integers: vcvtneps2bf16 would flush denormals.
[[gnu::always_inline]] inline __m256i to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), lsb), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  rounded = _mm512_mask_mov_epi32(rounded, nan, quiet);
  return _mm512_cvtepi32_epi16(rounded);
}

void finish(const FinishArgs& args) {
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const __m512 a_scale = _mm512_set1_ps(args.a_scale_inv[r * args.a_scale_stride]);
    for (int c = 0; c < args.channels; c += kBlockChannels) {
      const int left = args.channels - c;
      const __mmask16 mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
      const __m512 w_scale = args.w_scale_stride == 0 ? _mm512_set1_ps(args.w_scale_inv[0])
                                                      : _mm512_maskz_loadu_ps(mask, args.w_scale_inv + c);
      const __m512 sum = _mm512_loadu_ps(args.acc + r * args.blocks * kBlockChannels + c);
      __m512 value = _mm512_mul_ps(sum, _mm512_mul_ps(a_scale, w_scale));
      if (args.bias) value = _mm512_add_ps(value, load_values(args.bias, args.bias_type, c, mask));
      const std::int64_t at = r * args.y_stride + c;
      if (args.accumulate) value = _mm512_add_ps(value, load_values(args.y, args.y_type, at, mask));
      if (args.y_type == FloatType::F32)
        _mm512_mask_storeu_ps(static_cast<float*>(args.y) + at, mask, value);
      else if (args.y_type == FloatType::BF16)
        _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(args.y) + at, mask, to_bf16(value));
      else
        _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(args.y) + at, mask,
                                 _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
  }
}

}  // namespace
}  // namespace fp8::kernels
