// SPDX-License-Identifier: Apache-2.0
// The gemm kernels of both AVX-512 levels, as templates over how a line is decoded and how products are summed.
// Included by one unit per level, each with its own flags; everything is in an anonymous namespace so that no copy is
// shared.
//
// One accumulator per (row, channel), k ascending: the same chain for every tile size (see gemm_kernels.h).
#pragma once

#include "fp8/runtime/kernels/gemm/gemm_avx512_tiles.h"

namespace fp8::kernels {
namespace {

template <class Decode, class Product>
struct Kernel {
  using Fused = void (*)(Decode, const std::uint8_t*, std::int64_t, std::int64_t, Ahead, const float*, float*,
                         std::int64_t, bool, const TileScales*);
  using FusedRows = void (*)(Decode, const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t, const float*,
                             float*, std::int64_t, bool, const TileScales*);
  using Panel = void (*)(const float*, std::int64_t, const float*, float*, std::int64_t, bool, const TileScales*);

  // The function for `rows` rows, R <= rows <= Most.
  template <int NB, int Most, int R = 1>
  static Fused on_lines(int rows) {
    if constexpr (R == Most)
      return multiply_lines<Decode, Product, R, NB>;
    else
      return rows == R ? multiply_lines<Decode, Product, R, NB> : on_lines<NB, Most, R + 1>(rows);
  }
  template <int NB, int R = 1>
  static FusedRows on_rows(int rows) {
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

  // Of wide datapaths, each tile of a range has a part of what comes next fetched: were it what lies a fixed way ahead,
  // the first tile, which alone reads from memory, would wait for it, and so would the first lines of each block.
  static Ahead ahead_of(const MultiplyArgs& args, std::int64_t tile, int block, int count) {
    if constexpr (Product::kShare) {
      const auto tiles = static_cast<std::uint32_t>(args.tiles), step = (kLineBytes + tiles - 1) / tiles;
      return {args.next + block * args.block_stride + tile * args.range_lines * step, step};
    }
    const int few = args.plan.tile_rows <= 2 ? 1 : 2;
    return {args.lines + block * args.block_stride + args.prefetch / (few * count), kLineBytes};
  }

  // Blocks [block, block + count) with one function, every tile.
  static void fused(const Decode& decode, const MultiplyArgs& args, Fused function, int block, int count) {
    const int rows = args.plan.tile_rows;
    const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kBlockChannels;
    const float* x = static_cast<const float*>(args.x);
    float* acc = args.acc + block * kBlockChannels;
    for (std::int64_t t = 0; t < args.tiles; ++t) {
      function(decode.of_block(args, block), args.lines + block * args.block_stride, args.block_stride,
               args.range_lines, ahead_of(args, t, block, count), x, acc, acc_stride, args.first,
               TileScales(args, t, block).or_none());
      x += args.x_tile_stride / 4;
      acc += rows * acc_stride;
    }
  }

  static void panel(const Decode& decode, const MultiplyArgs& args, int block) {
    const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kBlockChannels;
    decode_panel<Decode, Product>(decode.of_block(args, block), args, args.lines + block * args.block_stride);
    const Panel function = on_panel(args.plan.tile_rows);
    const float* x = static_cast<const float*>(args.x);
    float* acc = args.acc + block * kBlockChannels;
    for (std::int64_t t = 0; t < args.tiles; ++t, x += args.x_tile_stride / 4, acc += args.plan.tile_rows * acc_stride)
      function(static_cast<const float*>(args.panel), args.range_lines, x, acc, acc_stride, args.first,
               TileScales(args, t, block).or_none());
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
    const FusedRows one = on_rows<1>(rows), several = args.plan.blocks == 4 ? on_rows<4>(rows) : on_rows<2>(rows);
    for (int block = 0; block < args.blocks;) {
      const int count = block + args.plan.blocks <= args.blocks ? args.plan.blocks : 1;
      (count == 1 ? one : several)(decode.of_block(args, block), args.lines + block * kBlockChannels * args.row_stride,
                                   args.row_stride, args.k, args.prefetch, static_cast<const float*>(args.x),
                                   args.acc + block * kBlockChannels, acc_stride, args.first,
                                   TileScales(args, 0, block).or_none());
      block += count;
    }
  }
};

inline constexpr std::int64_t kPackedPrefetch = 4096;

// The tile of at most `most` rows that pads m the least; the largest of them.
inline int even_tile(std::int64_t m, int most) {
  const auto padded = [m](int rows) { return (m + rows - 1) / rows * rows; };
  int best = most;
  for (int rows = most - 1; rows > most / 2; --rows)
    if (padded(rows) < padded(best)) best = rows;
  return best;
}

// Few rows: several blocks at once, so that independent sums hide the latency of the adds; with `wide`, as long a range
// as memory should be ahead of them. Some: two blocks, decoded again for each tile. Many: the same with panel_lines 0
// (the lookups of VBMI hide behind the products), else two blocks decoded once to a panel of so many lines.
inline GemmPlan plan_rows(std::int64_t m, int few_rows_blocks, int panel_lines, bool wide) {
  constexpr int kFewRowsAhead = 8192;
  GemmPlan plan;
  plan.blocks = 2;
  if (m <= kFewRows) {
    plan.tile_rows = static_cast<int>(m);
    plan.blocks = m <= 2 ? 4 : few_rows_blocks;
    plan.range_lines = 64;
    plan.packed_range_lines = wide ? kFewRowsAhead / (plan.blocks * kLineBytes) : 4096;
  } else if (m <= 2 * kSomeRows || panel_lines == 0) {
    plan.tile_rows = m <= kSomeRows ? static_cast<int>(m) : even_tile(m, kSomeRows);
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
