// SPDX-License-Identifier: Apache-2.0
// The sums of tdpbf16ps (software_tiles.h) for one or two rows of A without tiles: a tile of B would go through memory
// first, which takes longer than its products. Activations in f32 pairs, weights decoded in registers:
//
//   for each 8 lines (32 k):  even = odd = 0;  even = fma(A[2i], B[2i], even), odd = fma(A[2i+1], B[2i+1], odd)
//                             C = C + (even + odd)
//
// MXCSR has rounding to nearest, DAZ and FTZ meanwhile, which is what tiles do whatever it holds.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "fp8/runtime/kernels/gemm_kernels.h"
#include "fp8/runtime/kernels/software_tiles.h"
#include "fp8/runtime/kernels/x86/gemm_avx512_tiles.h"
#include "fp8/runtime/kernels/x86/gemm_lookup.h"

namespace fp8::kernels {
namespace {

// Lines of blocks that lie `stride` bytes apart, and their factors.
struct RowsArgs {
  const std::uint8_t* line;
  std::int64_t stride, lines, prefetch;
  const float* x;  // [k / 2][R][2]
  FoldReader reader;
};

// Not inlined: arithmetic could move across the writes of MXCSR, a call does not.
template <int R, int NB, bool kFold>
[[gnu::noinline]] void add_rows(const Lookup& tables, const RowsArgs& args, Sums<R, NB>& sums) {
  const Lookup lookup = tables;
  FoldReader reader = args.reader;
  const std::uint8_t* line = args.line;
  const float* x = args.x;
  for (std::int64_t left = args.lines; left > 0; left -= kTileLines) {
    __m512 even[R][NB], odd[R][NB];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) even[r][b] = odd[r][b] = _mm512_setzero_ps();
    const int lines = left < kTileLines ? static_cast<int>(left) : kTileLines;
    [[maybe_unused]] const std::uint32_t* folds = kFold ? reader.next() : nullptr;
    for (int q = 0; q < lines; ++q, line += kLineBytes, x += kLineK * R) {
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) {
        const std::uint8_t* at = line + b * args.stride;
        _mm_prefetch(reinterpret_cast<const char*>(at + args.prefetch), _MM_HINT_T0);
        __m512i lo, hi;
        lookup.line(_mm512_loadu_si512(at), lo, hi);
        if constexpr (kFold) {
          const __m512i of_block = _mm512_loadu_si512(folds + b * kBlockChannels);
          lo = fold(lo, of_block), hi = fold(hi, of_block);
        }
        __m512 w[SumF32::kSteps];
        SumF32::expand(lo, hi, w);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          even[r][b] = SumF32::add(even[r][b], w[0], x + 2 * r);
          odd[r][b] = SumF32::add(odd[r][b], w[1], x + 2 * r + 1);
          even[r][b] = SumF32::add(even[r][b], w[2], x + 2 * R + 2 * r);
          odd[r][b] = SumF32::add(odd[r][b], w[3], x + 2 * R + 2 * r + 1);
        }
      }
    }
    const __m512 zero = _mm512_setzero_ps();  // a tile's further products are 0 * 0: they make +0 of -0
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < NB; ++b) {
        if (lines < kTileLines)
          even[r][b] = _mm512_add_ps(even[r][b], zero), odd[r][b] = _mm512_add_ps(odd[r][b], zero);
        sums.c[r][b] = _mm512_add_ps(sums.c[r][b], _mm512_add_ps(even[r][b], odd[r][b]));
      }
  }
}

template <int R, int NB, bool kFold>
void multiply_few(const Lookup& lookup, const MultiplyArgs& args, int block) {
  const std::int64_t width = std::int64_t{args.blocks} * kBlockChannels;
  float* acc = args.acc + block * kBlockChannels;
  RowsArgs rows{args.lines + block * args.block_stride, args.block_stride,      0, args.prefetch / NB,
                static_cast<const float*>(args.x),      FoldReader(args, block)};
  Sums<R, NB> sums;
  sums.load(acc, width, args.first);
  const auto add = [&](std::int64_t lines) {
    rows.lines = lines;
    const unsigned control = _mm_getcsr();
    _mm_setcsr(kTileControl);
    add_rows<R, NB, kFold>(lookup, rows, sums);
    _mm_setcsr(control);
    rows.line += lines * kLineBytes;
    rows.x += lines * kLineK * R;
  };
  if (args.group == nullptr) {
    add(args.range_lines);
  } else {
    const TileScales scales(args, 0, block);
    scales.for_groups(args.begin_line, args.range_lines, add,
                      [&](std::int64_t g) { sums.end_group(scales, g, width); });
  }
  sums.store(acc, width);
}

template <int R, bool kFold>
void multiply_rows(const MultiplyArgs& args) {
  const Lookup lookup(*args.tables, kFold ? args.tables->bf16_low_marked : args.tables->bf16_low);
  int block = 0;
  for (; block + 4 <= args.blocks; block += 4) multiply_few<R, 4, kFold>(lookup, args, block);
  for (; block < args.blocks; ++block) multiply_few<R, 1, kFold>(lookup, args, block);
}

void multiply_few_rows(const MultiplyArgs& args) {
  if (args.folds != nullptr)
    args.plan.tile_rows == 1 ? multiply_rows<1, true>(args) : multiply_rows<2, true>(args);
  else
    args.plan.tile_rows == 1 ? multiply_rows<1, false>(args) : multiply_rows<2, false>(args);
}

}  // namespace
}  // namespace fp8::kernels
