// SPDX-License-Identifier: Apache-2.0
// gemm on AMX-BF16: C [R <= 16 rows x 16 channels] += A [R x 32 k] . B [32 k x 16 channels] by tdpbf16ps.
//
//   tmm0 .. tmm3   C of RT tiles of rows x NB blocks: 4 x 1, or 2 x 2 where there are no more than two tiles of rows;
//                  [R][16] f32 in acc, which carries C between ranges of k
//   tmm4 tmm5      A tiles, alternating  [R][32] bf16 of x, as XLayout::BF16Tile has them
//   tmm6 tmm7      B tiles of the blocks [16 pairs of k][16 channels][2] bf16
//
// A decoded line of the packed layout is two rows of a B tile (lo: k, k+1; hi: k+2, k+3), 8 lines are one; lines that K
// does not fill are 0, as is x there. B tiles are decoded while those before them are multiplied, into a ring that
// stays in L1: x comes from L2 all the time, and a panel of decoded weights would drive both out. Only BF16 and fp8
// activations; groups of whole tiles, whose scales are folded in as weights are decoded or end the sums in C.
#include <algorithm>
#include <utility>

#include "fp8/runtime/kernels/gemm/gemm_avx512.h"
#include "fp8/runtime/kernels/gemm/gemm_lookup.h"
#include "fp8/runtime/kernels/gemm/software_tiles.h"

namespace fp8::kernels {
namespace {

constexpr int kTileBytes = kTileRows * kTileRowBytes;  // of a B tile
constexpr int kRing = 4;                               // B tiles of a block
constexpr int kAhead = 2;  // of them not multiplied yet: what is stored takes a while until it can be loaded
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20, kLeastChunkRows = 64;  // of x: half of an L2
constexpr std::int64_t kMostChunkBytes = std::int64_t{8} << 20;
constexpr int kRowsWithoutTiles = 2;

// Codes of NB blocks become B tiles in a ring, each block's after the other's, one step of 32 k after the other.
template <int NB, bool kFold>
struct Decoder {
  const std::uint8_t* line;  ///< of the first block
  std::int64_t stride, left, prefetch;
  std::uint8_t* ring;
  FoldReader reader;
  unsigned step = 0;

  [[gnu::always_inline]] inline void next(const Lookup& lookup) {
    std::uint8_t* out = ring + (step++ % kRing) * NB * kTileBytes;
    [[maybe_unused]] const std::uint32_t* folds = kFold ? reader.next() : nullptr;
#pragma GCC unroll 2
    for (int b = 0; b < NB; ++b, out += kTileBytes) {
      const std::uint8_t* from = line + b * stride;
      __m512i of_block = _mm512_setzero_si512();
      if constexpr (kFold) of_block = _mm512_loadu_si512(folds + b * kBlockChannels);
      if (left >= kTileLines) [[likely]] {
#pragma GCC unroll 8
        for (int q = 0; q < kTileLines; ++q) decode(lookup, of_block, from + q * kLineBytes, out + 2 * q * kLineBytes);
      } else {
        for (int q = 0; q < kTileLines; ++q) {
          if (q < left) {
            decode(lookup, of_block, from + q * kLineBytes, out + 2 * q * kLineBytes);
          } else {
            _mm512_store_si512(out + 2 * q * kLineBytes, _mm512_setzero_si512());
            _mm512_store_si512(out + (2 * q + 1) * kLineBytes, _mm512_setzero_si512());
          }
        }
      }
    }
    left -= kTileLines, line += kTileLines * kLineBytes;
  }

 private:
  [[gnu::always_inline]] inline void decode(const Lookup& lookup, __m512i folds, const std::uint8_t* from,
                                            std::uint8_t* out) const {
    _mm_prefetch(reinterpret_cast<const char*>(from + prefetch), _MM_HINT_T0);
    __m512i lo, hi;
    lookup.line(_mm512_loadu_si512(from), lo, hi);
    if constexpr (kFold) lo = fold(lo, folds), hi = fold(hi, folds);
    _mm512_store_si512(out, lo);
    _mm512_store_si512(out + kLineBytes, hi);
  }
};

// f(integral_constant) for 0 .. N - 1.
template <int N, class F>
[[gnu::always_inline]] inline void for_each(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>()), ...);
  }(std::make_integer_sequence<int, N>());
}

// TileScales: the end of group g for a tile of rows whose sums lie in acc.
template <int NB>
void end_group(const TileScales& scales, std::int64_t g, const float* acc, std::int64_t width) {
  Sums<1, NB> sums;
  TileScales row = scales;
  row.rows = 1;
  for (int r = 0; r < scales.rows; ++r, acc += width, row.total += width) {
    if (scales.a_scale != nullptr) row.a_scale = scales.a_scale + r * scales.group->groups;
    sums.load(acc, width, /*first=*/false);
    sums.end_group(row, g, width);
  }
}

// C += A . B over the range, for RT tiles of rows from `tile` on and NB blocks:
// tmm(t * NB + b) += tmm(4 or 5) . tmm(6 + b)
template <int RT, int NB, bool kFold, class Tiles>
void add_products(Tiles& tiles, const Lookup& tables, const MultiplyArgs& args, std::int64_t tile, int block) {
  const Lookup lookup = tables;
  const std::int64_t rows = args.plan.tile_rows, width = std::int64_t{args.blocks} * kBlockChannels;
  const std::int64_t x_tile = args.x_tile_stride, x_step = rows * kTileRowBytes;
  const GroupScales* group = args.group;
  float* acc = args.acc + tile * rows * width + block * kBlockChannels;
  const auto sums_of = [&](int i) { return acc + (i / NB) * rows * width + i % NB * kBlockChannels; };
  const std::uint8_t* x = static_cast<const std::uint8_t*>(args.x) + tile * x_tile;
  Decoder<NB, kFold> decoder{
      args.lines + block * args.block_stride, args.block_stride,      args.range_lines, args.prefetch / NB,
      static_cast<std::uint8_t*>(args.panel), FoldReader(args, block)};
  const std::uint8_t* ring = decoder.ring;
  for (int i = 0; i < kAhead; ++i)
    if (decoder.left > 0) decoder.next(lookup);
  unsigned step = 0;
  bool first = args.first;
  std::int64_t at = args.begin_line, left = args.range_lines;
  while (left > 0) {
    const std::int64_t g = group != nullptr ? at / group->lines : 0;
    const std::int64_t lines = group != nullptr ? std::min(left, (g + 1) * group->lines - at) : left;
    if (first)
      for_each<RT * NB>([&](auto i) { tiles.template zero<i>(); });
    else
      for_each<RT * NB>([&](auto i) { tiles.template load<i>(sums_of(i), width * 4); });
    for (std::int64_t l = 0; l < lines; l += kTileLines, x += x_step) {
      if (decoder.left > 0) decoder.next(lookup);
      const std::uint8_t* w = ring + (step++ % kRing) * NB * kTileBytes;
      for_each<NB>([&](auto b) { tiles.template load<6 + b>(w + b * kTileBytes, kTileRowBytes); });
      for_each<RT>([&](auto t) {
        constexpr int kA = 4 + t % 2;
        tiles.template load<kA>(x + t * x_tile, kTileRowBytes);
        for_each<NB>([&](auto b) { tiles.template dot<t * NB + b, kA, 6 + b>(); });
      });
    }
    for_each<RT * NB>([&](auto i) { tiles.template store<i>(sums_of(i), width * 4); });
    first = false;
    at += lines, left -= lines;
    if (group != nullptr && (at == (g + 1) * group->lines || at == group->all_lines)) {
      for (int t = 0; t < RT; ++t) end_group<NB>(TileScales(args, tile + t, block), g, sums_of(t * NB), width);
      first = true;
    }
  }
}

// Tiles [tile, args.tiles) of NB blocks, as many at once as there are tiles of C.
template <int NB, bool kFold, class Tiles>
void multiply_blocks(Tiles& tiles, const Lookup& lookup, const MultiplyArgs& args, int block) {
  constexpr int kMost = 4 / NB;
  std::int64_t tile = 0;
  for (; tile + kMost <= args.tiles; tile += kMost) add_products<kMost, NB, kFold>(tiles, lookup, args, tile, block);
  const std::int64_t left = args.tiles - tile;
  if (left == 1) add_products<1, NB, kFold>(tiles, lookup, args, tile, block);
  if constexpr (kMost == 4) {
    if (left == 2) add_products<2, NB, kFold>(tiles, lookup, args, tile, block);
    if (left == 3) add_products<3, NB, kFold>(tiles, lookup, args, tile, block);
  }
}

template <bool kFold, class Tiles>
void multiply_decoded(const MultiplyArgs& args) {
  const Lookup lookup(*args.tables, kFold ? args.tables->bf16_low_marked : args.tables->bf16_low);
  const TileConfig config = config_of(args.plan.tile_rows);
  Tiles tiles(config);
  int block = 0;
  if (args.tiles <= 2)
    for (; block + 2 <= args.blocks; block += 2) multiply_blocks<2, kFold>(tiles, lookup, args, block);
  for (; block < args.blocks; ++block) multiply_blocks<1, kFold>(tiles, lookup, args, block);
}

template <class Tiles>
void multiply_tiles(const MultiplyArgs& args) {
  args.folds != nullptr ? multiply_decoded<true, Tiles>(args) : multiply_decoded<false, Tiles>(args);
}

// The sums of tdpbf16ps for one or two rows of A without tiles: a tile of B would go through memory
// first, which takes longer than its products. Activations in f32 pairs, weights decoded in registers:
//
//   for each 8 lines (32 k):  even = odd = 0;  even = fma(A[2i], B[2i], even), odd = fma(A[2i+1], B[2i+1], odd)
//                             C = C + (even + odd)
//
// MXCSR has rounding to nearest, DAZ and FTZ meanwhile, which is what tiles do whatever it holds.

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

// As few tiles as hold m rows, with as few rows as that takes.
GemmPlan plan_tiles(std::int64_t m) {
  const std::int64_t tiles = (m + kTileRows - 1) / kTileRows;
  GemmPlan plan;
  plan.tile_rows = static_cast<int>((m + tiles - 1) / tiles);
  plan.blocks = 2;
  plan.range_lines = 128;
  plan.packed_range_lines = 4096;
  return plan;
}

GemmPlan plan_few(std::int64_t m) {
  GemmPlan plan;
  plan.tile_rows = static_cast<int>(m);
  plan.blocks = 4;
  plan.range_lines = 64;
  plan.packed_range_lines = 4096;
  return plan;
}

template <class Tiles>
constexpr GemmKernels kKernels{XLayout::BF16Tile,
                               kBlockChannels,
                               plan_tiles,
                               kRing * 2 * kTileBytes,
                               pack_lines,
                               multiply_tiles<Tiles>,
                               nullptr,
                               0,
                               finish,
                               kPackedPrefetch,
                               kChunkBytes,
                               kLeastChunkRows,
                               fold_scales};

constexpr GemmKernels kFewKernels{XLayout::F32Pair,  kBlockChannels, plan_few,   0,      pack_lines,
                                  multiply_few_rows, nullptr,        0,          finish, kPackedPrefetch,
                                  kMostChunkBytes,   kTileRows,      fold_scales};

}  // namespace

void pack_tile_amx(const PartOfTile& part) {
  const RowReader rows(part);
  const std::int64_t step = std::int64_t{part.tile_rows} * kTileK;
  for (std::int64_t r = 0; r < part.tile_rows; ++r) {
    std::uint16_t* out = part.out + r * kTileK;
    for (std::int64_t k = part.k_begin; k < part.k_end; k += kTileK, out += step)
      _mm512_storeu_si512(out, rows.at(r, k));
  }
}

const GemmKernels* gemm_kernels_amx(bool hardware, std::int64_t m) {
  if (m <= kRowsWithoutTiles) return &kFewKernels;
  return hardware ? &kKernels<HardwareTiles> : &kKernels<EmulatedTiles>;
}

}  // namespace fp8::kernels
