// SPDX-License-Identifier: Apache-2.0
// gemm on AMX-BF16: C [R <= 16 rows x 16 channels] += A [R x 32 k] . B [32 k x 16 channels] by tdpbf16ps, in 2 x 2
// tiles of C for two A tiles and two blocks of channels:
//
//   tmm0 tmm1   C of the first A tile, blocks 0, 1      [R][16] f32 in acc, which carries C between ranges of k
//   tmm2 tmm3   C of the second
//   tmm4 tmm5   A tiles                                 [R][32] bf16 of x, as XLayout::BF16Tile has them
//   tmm6 tmm7   B tiles of blocks 0, 1                  [16 pairs of k][16 channels][2] bf16 of the panel
//
// A decoded line of the packed layout is two rows of a B tile (lo: k, k+1; hi: k+2, k+3), 8 lines are one; lines that K
// does not fill are 0, as is x there. Only BF16 and fp8 activations, without scales of groups.
//
// The tile unit is a policy: the hardware's instructions, or SoftwareTiles. No CPU with AMX was at hand: this code gave
// the manual's bits on an emulated one (Bochs 3.0, Sapphire Rapids) and does so under the tests' signal handler that
// executes its instructions (tests/runtime/kernels/amx_trap.h). Its speed is not known.
#include "fp8/runtime/kernels/software_tiles.h"
#include "fp8/runtime/kernels/x86/gemm_avx512.h"
#include "fp8/runtime/kernels/x86/gemm_lookup.h"

namespace fp8::kernels {
namespace {

constexpr int kTileLines = kTileK / kLineK;
constexpr int kPanelLines = 128;                       // of each of two blocks
constexpr int kTileBytes = kTileRows * kTileRowBytes;  // of a B tile
constexpr int kBlockPanel = kPanelLines * 2 * kLineBytes;

// GCC's intrinsics paste the number of a tile as text, which no template parameter is, and their load does not say that
// it reads memory.
struct HardwareTiles {
  explicit HardwareTiles(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  ~HardwareTiles() { asm volatile("tilerelease" : : : "memory"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int T>
  [[gnu::always_inline]] inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  [[gnu::always_inline]] inline void load(const void* base, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  [[gnu::always_inline]] inline void store(void* base, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  [[gnu::always_inline]] inline void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

struct EmulatedTiles {
  SoftwareTiles tiles;
  explicit EmulatedTiles(const TileConfig& config) { tiles.configure(config); }

  template <int T>
  void zero() {
    tiles.zero(T);
  }
  template <int T>
  void load(const void* base, std::int64_t stride) {
    tiles.load(T, base, stride);
  }
  template <int T>
  void store(void* base, std::int64_t stride) {
    tiles.store(T, base, stride);
  }
  template <int C, int A, int B>
  void dot() {
    tiles.dot(C, A, B);
  }
};

TileConfig config_of(int rows) {
  TileConfig config{};
  config.palette = 1;
  for (int t = 0; t < kTiles; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(t < 6 ? rows : kTileRows);
    config.row_bytes[t] = kTileRowBytes;
  }
  return config;
}

// `count` blocks from `block` on -> [block][k / 32] B tiles.
void decode_panel(const Lookup& lookup, const MultiplyArgs& args, int block, int count) {
  const std::int64_t lines = (args.range_lines + kTileLines - 1) / kTileLines * kTileLines;
  for (int b = 0; b < count; ++b) {
    const std::uint8_t* line = args.lines + (block + b) * args.block_stride;
    std::uint8_t* out = static_cast<std::uint8_t*>(args.panel) + b * kBlockPanel;
    for (std::int64_t q = 0; q < lines; ++q, line += kLineBytes, out += 2 * kLineBytes) {
      __m512i lo = _mm512_setzero_si512(), hi = lo;
      if (q < args.range_lines) {
        _mm_prefetch(reinterpret_cast<const char*>(line + args.prefetch / count), _MM_HINT_T0);
        lookup.line(_mm512_loadu_si512(line), lo, hi);
      }
      _mm512_store_si512(out, lo);
      _mm512_store_si512(out + kLineBytes, hi);
    }
  }
}

// C += A . panel over the range, for RT tiles of rows from `tile` on and NB blocks.
template <int RT, int NB, class Tiles>
void add_products(Tiles& tiles, const MultiplyArgs& args, std::int64_t tile, int block) {
  constexpr bool kRows = RT == 2, kBlocks = NB == 2;
  const std::int64_t rows = args.plan.tile_rows, acc_row = std::int64_t{args.blocks} * kBlockChannels;
  float *acc0 = args.acc + tile * rows * acc_row + block * kBlockChannels, *acc1 = acc0 + rows * acc_row;
  const std::int64_t acc_bytes = acc_row * 4;
  if (args.first) {
    tiles.template zero<0>();
    if constexpr (kBlocks) tiles.template zero<1>();
    if constexpr (kRows) tiles.template zero<2>();
    if constexpr (kRows && kBlocks) tiles.template zero<3>();
  } else {
    tiles.template load<0>(acc0, acc_bytes);
    if constexpr (kBlocks) tiles.template load<1>(acc0 + kBlockChannels, acc_bytes);
    if constexpr (kRows) tiles.template load<2>(acc1, acc_bytes);
    if constexpr (kRows && kBlocks) tiles.template load<3>(acc1 + kBlockChannels, acc_bytes);
  }
  const std::uint8_t *x = static_cast<const std::uint8_t*>(args.x) + tile * args.x_tile_stride,
                     *w = static_cast<const std::uint8_t*>(args.panel);
  for (std::int64_t q = 0; q < args.range_lines; q += kTileLines, x += rows * kTileRowBytes, w += kTileBytes) {
    tiles.template load<4>(x, kTileRowBytes);
    tiles.template load<6>(w, kTileRowBytes);
    tiles.template dot<0, 4, 6>();
    if constexpr (kBlocks) tiles.template load<7>(w + kBlockPanel, kTileRowBytes);
    if constexpr (kBlocks) tiles.template dot<1, 4, 7>();
    if constexpr (kRows) tiles.template load<5>(x + args.x_tile_stride, kTileRowBytes);
    if constexpr (kRows) tiles.template dot<2, 5, 6>();
    if constexpr (kRows && kBlocks) tiles.template dot<3, 5, 7>();
  }
  tiles.template store<0>(acc0, acc_bytes);
  if constexpr (kBlocks) tiles.template store<1>(acc0 + kBlockChannels, acc_bytes);
  if constexpr (kRows) tiles.template store<2>(acc1, acc_bytes);
  if constexpr (kRows && kBlocks) tiles.template store<3>(acc1 + kBlockChannels, acc_bytes);
}

template <int NB, class Tiles>
void multiply_blocks(Tiles& tiles, const Lookup& lookup, const MultiplyArgs& args, int block) {
  decode_panel(lookup, args, block, NB);
  std::int64_t tile = 0;
  for (; tile + 2 <= args.tiles; tile += 2) add_products<2, NB>(tiles, args, tile, block);
  if (tile < args.tiles) add_products<1, NB>(tiles, args, tile, block);
}

template <class Tiles>
void multiply_tiles(const MultiplyArgs& args) {
  const Lookup lookup(*args.tables);
  const TileConfig config = config_of(args.plan.tile_rows);
  Tiles tiles(config);
  int block = 0;
  for (; block + 2 <= args.blocks; block += 2) multiply_blocks<2>(tiles, lookup, args, block);
  if (block < args.blocks) multiply_blocks<1>(tiles, lookup, args, block);
}

// As few tiles as hold m rows, with as few rows as that takes.
GemmPlan plan_tiles(std::int64_t m) {
  const std::int64_t tiles = (m + kTileRows - 1) / kTileRows;
  GemmPlan plan;
  plan.tile_rows = static_cast<int>((m + tiles - 1) / tiles);
  plan.blocks = 2;
  plan.range_lines = plan.packed_range_lines = kPanelLines;
  plan.panel = true;
  return plan;
}

template <class Tiles>
constexpr GemmKernels kKernels{XLayout::BF16Tile,     kBlockChannels, plan_tiles, 2 * kBlockPanel, pack_lines,
                               multiply_tiles<Tiles>, nullptr,        0,          finish,          kPackedPrefetch};

}  // namespace

const GemmKernels* gemm_kernels_amx(bool hardware) {
  return hardware ? &kKernels<HardwareTiles> : &kKernels<EmulatedTiles>;
}

}  // namespace fp8::kernels
