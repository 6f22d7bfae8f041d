// SPDX-License-Identifier: Apache-2.0
// Packs activations: [m, k] of any type -> tiles [k][R] (F32), [k/2][R][2] (pairs) or [k/32][R][32], R rows per tile.
// The kernels broadcast one element (or one pair) per row and step; with R of them side by side that is one cache line
// instead of R lines that are a power of two apart and evict each other.
#include "fp8/runtime/kernels/gemm/gemm_operands.h"

#include <algorithm>
#include <limits>

#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kRangeK = 512;  // one unit of work: one tile x this many k
constexpr std::int64_t kMostTileRows = 16;
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
const CodeTables& tables_of(const GemmArgs& args) {
  return code_tables(args.a_type == Storage::E5M2 ? Format::E5M2 : Format::E4M3);
}

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

// pack(tile, its elements) for the parts of all tiles.
template <class T, class Pack>
void for_tiles(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
               const Pack& pack, T* out) {
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
      pack(t, out + tile * stride);
    }
  };
  const std::int64_t units = tiles * ranges;
  if (rows * args.k < kSerialElements)
    run(0, units);
  else
    parallel_for(units, 1, run);
}

template <class Load>
void pack_f32(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
              const Load& load, float* out) {
  const auto pack = [&](const Tile& t, float* tile_out) {
    if (layout == XLayout::F32)
      pack_tile<1>(t, load, tile_out);
    else
      pack_tile<2>(t, load, tile_out);
  };
  for_tiles(args, row0, rows, tile_rows, layout, pack, out);
}

#if defined(__x86_64__)
// The folds of a part of a tile, [rows][groups of it].
using TileFolds = std::array<std::uint16_t, kMostTileRows * kRangeK / kTileK>;
void fold_rows(const GemmArgs& args, const Tile& t, const float* largest, TileFolds& folds, PartOfTile& part) {
  const std::int64_t first = t.k_begin / args.blocks.cols, groups = (args.k + args.blocks.cols - 1) / args.blocks.cols;
  part.k_group = args.blocks.cols;
  part.groups = (t.k_end - 1) / args.blocks.cols + 1 - first;
  part.folds = folds.data();
  std::uint16_t* fold = folds.data();
  for (std::int64_t r = 0; r < std::min<std::int64_t>(t.rows, t.tile_rows); ++r)
    for (std::int64_t g = first; g < first + part.groups; ++g)
      *fold++ = fold_of(args.a_scale_inv[(t.first_row + r) * groups + g], largest[r]);
}

// BF16 and codes, in BF16Pair or BF16Tile; largest: [rows] or nullptr.
void pack_bf16(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
               const float* largest, std::uint16_t* out) {
  const bool codes = args.a_type != Storage::BF16;
  const auto pack = [&](const Tile& t, std::uint16_t* tile_out) {
    PartOfTile part;
    TileFolds folds;
    part.a = static_cast<const std::uint8_t*>(args.a) + t.first_row * t.stride * (codes ? 1 : 2);
    part.codes = codes, part.tables = &tables_of(args);
    part.stride = t.stride, part.rows = t.rows;
    part.k_begin = t.k_begin, part.k_end = t.k_end, part.k_padded_end = t.k_padded_end;
    part.tile_rows = tile_rows;
    if (largest != nullptr) fold_rows(args, t, largest + (t.first_row - row0), folds, part);
    part.out = tile_out + t.k_begin * tile_rows;
    layout == XLayout::BF16Tile ? pack_tile_amx(part) : pack_pairs_avx512bf16(part);
  };
  for_tiles(args, row0, rows, tile_rows, layout, pack, out);
}
#endif

// The one tile of few rows of codes, in F32Pair.
void pack_folded_rows(const GemmArgs& args, int rows, const float* largest, float* out) {
  const CodeTables& tables = tables_of(args);
  const std::int64_t groups = (args.k + args.blocks.cols - 1) / args.blocks.cols;
  const auto at = [&](int r, std::int64_t k) -> float& { return out[k / 2 * 2 * rows + 2 * r + k % 2]; };
  for (int r = 0; r < rows; ++r) {
    const std::uint8_t* codes = static_cast<const std::uint8_t*>(args.a) + r * args.a_stride;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::uint16_t fold = fold_of(args.a_scale_inv[r * groups + g], largest[r]);
      for (std::int64_t k = g * args.blocks.cols; k < std::min(args.k, (g + 1) * args.blocks.cols); ++k)
        at(r, k) = bf16_to_f32(folded(tables.bf16[codes[k]], fold));
    }
    for (std::int64_t k = args.k; k % kLineK != 0; ++k) at(r, k) = 0.0f;
  }
}

}  // namespace

void pack_activations(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
                      void* out, const float* largest) {
#if defined(__x86_64__)
  if (element_bytes(layout) == 2)
    return pack_bf16(args, row0, rows, tile_rows, layout, largest, static_cast<std::uint16_t*>(out));
#endif
  const auto* a16 = static_cast<const std::uint16_t*>(args.a);
  auto* values = static_cast<float*>(out);
  if (largest != nullptr) return pack_folded_rows(args, tile_rows, largest, values);
  switch (args.a_type) {
    case Storage::F32:
      return pack_f32(args, row0, rows, tile_rows, layout, LoadF32{static_cast<const float*>(args.a)}, values);
    case Storage::BF16: return pack_f32(args, row0, rows, tile_rows, layout, LoadBf16{a16}, values);
    case Storage::F16: return pack_f32(args, row0, rows, tile_rows, layout, LoadF16{a16}, values);
    case Storage::E4M3:
    case Storage::E5M2:
      return pack_f32(args, row0, rows, tile_rows, layout,
                      LoadCode{static_cast<const std::uint8_t*>(args.a), tables_of(args).value}, values);
  }
}

namespace {

constexpr std::int64_t kPanelBytes = std::int64_t{8} << 20;
constexpr std::int64_t kRowPrefetch = 512;  // ahead in each of 16 rows

// n channels from `first` on, which lie packed.
GemmArgs part_of(const GemmArgs& args, std::int64_t first, std::int64_t n, const std::uint8_t* packed) {
  GemmArgs part = args;
  part.n = n;
  part.w = packed, part.w_layout = Layout::packed;
  part.y = static_cast<std::uint8_t*>(args.y) + first * size_of(args.y_type);
  if (args.bias) part.bias = static_cast<const std::uint8_t*>(args.bias) + first * size_of(args.bias_type);
  if (args.blocks.cols > 0) {
    const std::int64_t row = args.blocks.first_row + first, groups = (args.k + args.blocks.cols - 1) / args.blocks.cols;
    part.w_scale_inv += row / args.blocks.rows * groups;
    part.blocks.first_row = row % args.blocks.rows;
  } else if (args.w_scale_inv) {
    part.w_scale_inv += first * args.w_scale_stride;
  }
  return part;
}

}  // namespace

void for_panels(const GemmArgs& args, const GemmKernels& kernels, const std::function<void(const GemmArgs&)>& run) {
  const std::int64_t block_bytes = packed_bytes(kBlockChannels, args.k);
  const std::int64_t blocks = (args.n + kBlockChannels - 1) / kBlockChannels,
                     most = std::clamp<std::int64_t>(kPanelBytes / block_bytes, 1, blocks);
  thread_local Scratch scratch;
  std::uint8_t* packed = scratch.get(most * block_bytes);
  for (std::int64_t block = 0; block < blocks; block += most) {
    const std::int64_t first = block * kBlockChannels, n = std::min(most * kBlockChannels, args.n - first);
    const auto pack = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t row = b * kBlockChannels;
        kernels.pack_lines(args.w + (first + row) * args.k, args.k,
                           static_cast<int>(std::min<std::int64_t>(kBlockChannels, n - row)), args.k, kRowPrefetch,
                           packed + b * block_bytes);
      }
    };
    parallel_for((n + kBlockChannels - 1) / kBlockChannels, 1, std::ref(pack));
    run(part_of(args, first, n, packed));
  }
}

namespace {

/// The place of element (n, k) of the weight.
std::int64_t weight_at(const GemmArgs& args, std::int64_t n, std::int64_t k) {
  if (args.w_layout == Layout::row_major) return n * args.k + k;
  const std::int64_t padded_k = (args.k + 3) / 4 * 4;
  return n / 16 * 16 * padded_k + k / 4 * 64 + n % 16 / 4 * 16 + k % 4 / 2 * 8 + n % 4 * 2 + k % 2;
}

float activation(const GemmArgs& args, std::int64_t row, std::int64_t k) {
  const std::int64_t at = row * args.a_stride + k;
  switch (args.a_type) {
    case Storage::F32: return static_cast<const float*>(args.a)[at];
    case Storage::BF16: return bf16_to_f32(static_cast<const std::uint16_t*>(args.a)[at]);
    case Storage::F16: return f16_to_f32(static_cast<const std::uint16_t*>(args.a)[at]);
    case Storage::E4M3: return decode_table(Format::E4M3, args.dialect)[static_cast<const std::uint8_t*>(args.a)[at]];
    case Storage::E5M2: break;
  }
  return decode_table(Format::E5M2)[static_cast<const std::uint8_t*>(args.a)[at]];
}

void store(const GemmArgs& args, std::int64_t row, std::int64_t channel, float value) {
  const std::int64_t at = row * args.y_stride + channel;
  if (args.y_type == FloatType::F32) static_cast<float*>(args.y)[at] = value;
  if (args.y_type == FloatType::BF16) static_cast<std::uint16_t*>(args.y)[at] = f32_to_bf16(value);
  if (args.y_type == FloatType::F16) static_cast<std::uint16_t*>(args.y)[at] = f32_to_f16(value);
}

bool has_them(const std::uint8_t* codes, std::int64_t n) {
  return has_nan_code(codes, n, Format::E4M3, Dialect::gaudi2);
}

std::vector<std::int64_t> rows_with_them(const GemmArgs& args) {
  std::vector<std::int64_t> rows;
  if (args.a_type != Storage::E4M3 || args.k == 0) return rows;
  const auto* codes = static_cast<const std::uint8_t*>(args.a);
  const bool dense = args.m == 1 || args.a_stride == args.k;
  if (dense && !has_them(codes, args.m * args.k)) return rows;
  for (std::int64_t m = 0; m < args.m; ++m)
    if (has_them(codes + m * args.a_stride, args.k)) rows.push_back(m);
  return rows;
}

std::vector<std::int64_t> channels_with_them(const GemmArgs& args) {
  std::vector<std::int64_t> channels;
  if (args.w_format != Format::E4M3 || args.k == 0) return channels;
  const bool packed = args.w_layout == Layout::packed;
  if (!has_them(args.w, packed ? packed_bytes(args.n, args.k) : args.n * args.k)) return channels;
  for (std::int64_t n = 0; n < args.n; ++n) {
    bool found = false;
    for (std::int64_t k = 0; k < args.k && !found; ++k) found = (args.w[weight_at(args, n, k)] & 0x7F) >= 0x78;
    if (found) channels.push_back(n);
  }
  return channels;
}

}  // namespace

NonFiniteOutputs::NonFiniteOutputs(const GemmArgs& args)
    : args_(args), rows_(rows_with_them(args)), channels_(channels_with_them(args)) {
  const auto count = [](std::size_t lines, std::int64_t length) { return lines * static_cast<std::size_t>(length); };
  of_rows_.resize(count(rows_.size(), args.n));
  of_channels_.resize(count(channels_.size(), args.m));
  const std::int64_t grain = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(args.k, 1));
  parallel_each(static_cast<std::int64_t>(of_rows_.size()), grain, [&](std::int64_t i) {
    of_rows_[static_cast<std::size_t>(i)] = output(rows_[static_cast<std::size_t>(i / args.n)], i % args.n);
  });
  const auto across = static_cast<std::int64_t>(channels_.size());
  parallel_each(static_cast<std::int64_t>(of_channels_.size()), grain, [&](std::int64_t i) {
    of_channels_[static_cast<std::size_t>(i)] = output(i / across, channels_[static_cast<std::size_t>(i % across)]);
  });
}

float NonFiniteOutputs::output(std::int64_t row, std::int64_t channel) const {
  const float* values = decode_table(args_.w_format, args_.dialect);
  const bool grouped = args_.blocks.cols > 0;
  const std::int64_t group = grouped ? args_.blocks.cols : args_.k, groups = (args_.k + group - 1) / group;
  float total = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    float sum = 0;
    for (std::int64_t k = g * group; k < std::min(args_.k, (g + 1) * group); ++k)
      sum += activation(args_, row, k) * values[args_.w[weight_at(args_, channel, k)]];
    const std::int64_t a_at = grouped ? row * groups + g : row * args_.a_scale_stride,
                       w_at = grouped ? (args_.blocks.first_row + channel) / args_.blocks.rows * groups + g
                                      : channel * args_.w_scale_stride;
    total += sum * ((args_.a_scale_inv ? args_.a_scale_inv[a_at] : 1.0f) *
                    (args_.w_scale_inv ? args_.w_scale_inv[w_at] : 1.0f));
  }
  if (args_.bias) total += load_element(args_.bias, args_.bias_type, channel);
  if (args_.accumulate) total += load_element(args_.y, args_.y_type, row * args_.y_stride + channel);
  return std::isnan(total) ? std::numeric_limits<float>::quiet_NaN() : total;
}

void NonFiniteOutputs::write() const {
  for (std::size_t i = 0; i < of_rows_.size(); ++i) {
    const auto n = static_cast<std::size_t>(args_.n);
    store(args_, rows_[i / n], static_cast<std::int64_t>(i % n), of_rows_[i]);
  }
  for (std::size_t i = 0; i < of_channels_.size(); ++i)
    store(args_, static_cast<std::int64_t>(i / channels_.size()), channels_[i % channels_.size()], of_channels_[i]);
}

}  // namespace fp8::kernels
