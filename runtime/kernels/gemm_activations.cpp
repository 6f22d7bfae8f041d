// SPDX-License-Identifier: Apache-2.0
// Packs activations: [m, k] of any type -> tiles [k][R] (F32), [k/2][R][2] (pairs) or [k/32][R][32], R rows per tile.
// The kernels broadcast one element (or one pair) per row and step; with R of them side by side that is one cache line
// instead of R lines that are a power of two apart and evict each other.
#include "fp8/runtime/kernels/gemm_activations.h"

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kRangeK = 512;            // one unit of work: one tile x this many k
constexpr std::int64_t kSerialElements = 32768;  // less than this is not worth a fork

struct LoadF32 {
  const float* a;
  float operator()(std::int64_t i) const { return a[i]; }
};
struct LoadBf16 {
  const std::uint16_t* a;
  float operator()(std::int64_t i) const { return bf16_to_f32(a[i]); }
};
struct LoadF16 {
  const std::uint16_t* a;
  float operator()(std::int64_t i) const { return f16_to_f32(a[i]); }
};
struct LoadCode {
  const std::uint8_t* a;
  const float* value;
  float operator()(std::int64_t i) const { return value[a[i]]; }
};
struct LoadBf16Bits {
  const std::uint16_t* a;
  std::uint16_t operator()(std::int64_t i) const { return a[i]; }
};
struct LoadCodeBits {
  const std::uint8_t* a;
  const std::uint16_t* bf16;
  std::uint16_t operator()(std::int64_t i) const { return bf16[a[i]]; }
};

struct Tile {
  std::int64_t first_row, rows;  // valid rows of the tile
  std::int64_t k_begin, k_end, k_padded_end;
  std::int64_t stride;
  int tile_rows;
};

// [k / Run][R][Run]; `out` is the tile's first element.
template <int Run, class T, class Load>
void pack_tile(const Tile& t, const Load& load, T* out) {
  const std::int64_t step = static_cast<std::int64_t>(t.tile_rows) * Run;
  for (std::int64_t r = 0; r < t.tile_rows; ++r) {
    T* column = out + r * Run;
    const std::int64_t base = (t.first_row + r) * t.stride;
    const std::int64_t valid = r < t.rows ? t.k_end : t.k_begin;
    std::int64_t k = t.k_begin;
    if constexpr (Run > 1) {
      for (; k + Run <= valid; k += Run) {
        T* run = column + (k / Run) * step;
        for (int i = 0; i < Run; ++i) run[i] = load(base + k + i);
      }
    }
    for (; k < t.k_padded_end; ++k) column[(k / Run) * step + k % Run] = k < valid ? load(base + k) : T{};
  }
}

template <class T, class Load>
void pack_all(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
              const Load& load, T* out) {
  const std::int64_t unit_k = k_unit(layout), padded_k = (args.k + unit_k - 1) / unit_k * unit_k;
  const std::int64_t stride = tile_stride(tile_rows, args.k, layout) / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const std::int64_t ranges = (args.k + kRangeK - 1) / kRangeK;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t tile = unit / ranges, range = unit % ranges;
      Tile t{};
      t.first_row = row0 + tile * tile_rows;
      t.rows = row0 + rows - t.first_row;
      t.k_begin = range * kRangeK;
      t.k_end = range + 1 == ranges ? args.k : t.k_begin + kRangeK;
      t.k_padded_end = range + 1 == ranges ? padded_k : t.k_end;
      t.stride = args.a_stride;
      t.tile_rows = tile_rows;
      T* tile_out = out + tile * stride;
      if (layout == XLayout::BF16Tile)
        pack_tile<kTileK>(t, load, tile_out);
      else if (layout == XLayout::F32)
        pack_tile<1>(t, load, tile_out);
      else
        pack_tile<2>(t, load, tile_out);
    }
  };
  const std::int64_t units = tiles * ranges;
  if (rows * args.k < kSerialElements)
    run(0, units);
  else
    parallel_for(units, 1, run);
}

}  // namespace

void pack_activations(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
                      void* out) {
  const auto* a16 = static_cast<const std::uint16_t*>(args.a);
  const auto* a8 = static_cast<const std::uint8_t*>(args.a);
  const CodeTables& tables = code_tables(args.a_type == Storage::E5M2 ? Format::E5M2 : Format::E4M3);
  if (element_bytes(layout) == 2) {
    auto* bits = static_cast<std::uint16_t*>(out);
    if (args.a_type == Storage::BF16)
      pack_all(args, row0, rows, tile_rows, layout, LoadBf16Bits{a16}, bits);
    else
      pack_all(args, row0, rows, tile_rows, layout, LoadCodeBits{a8, tables.bf16}, bits);
    return;
  }
  auto* values = static_cast<float*>(out);
  switch (args.a_type) {
    case Storage::F32:
      return pack_all(args, row0, rows, tile_rows, layout, LoadF32{static_cast<const float*>(args.a)}, values);
    case Storage::BF16:
      return pack_all(args, row0, rows, tile_rows, layout, LoadBf16{a16}, values);
    case Storage::F16:
      return pack_all(args, row0, rows, tile_rows, layout, LoadF16{a16}, values);
    case Storage::E4M3:
    case Storage::E5M2:
      return pack_all(args, row0, rows, tile_rows, layout, LoadCode{a8, tables.value}, values);
  }
}

}  // namespace fp8::kernels
