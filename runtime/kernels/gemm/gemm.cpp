// SPDX-License-Identifier: Apache-2.0
// gemm: checks, the cut into work, and the loop over ranges of k. The arithmetic is in the level's kernels.
//
//   chunk    <= 512 rows of A, packed once for all threads
//   group    GemmPlan::blocks blocks of 16 channels of one product: one thread's unit, with all tiles of rows or (few
//            groups) a part of them
//   range    GemmPlan::range_lines lines of k: row-major weights are packed to scratch range by range, never as a whole
//            (where several chunks would with level amx, panel by panel before: gemm_operands.h)
#include "fp8/runtime/kernels/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/gemm/gemm_operands.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kChunkRows = 512;
constexpr std::int64_t kMostLanes = 256;    // blocks * acc_floats of every plan
constexpr std::int64_t kRowPrefetch = 512;  // ahead in each of 16 rows

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

bool groups_are_whole_tiles(const GemmArgs& args) {
  return args.blocks.cols % kTileK == 0 || args.blocks.cols >= args.k;
}

const GemmKernels& kernels_for(const GemmArgs& args) {
  const bool exact_in_bf16 = args.a_type != Storage::F32 && args.a_type != Storage::F16;
#if defined(__x86_64__)
  switch (simd_level()) {
    case SimdLevel::amx:
      if (exact_in_bf16 && groups_are_whole_tiles(args))
        return *gemm_kernels_amx(best_simd_level() == SimdLevel::amx, args.m);
      [[fallthrough]];
    case SimdLevel::avx512bf16: return *gemm_kernels_avx512bf16(exact_in_bf16, wide_datapath());
    case SimdLevel::avx512: return *gemm_kernels_avx512();
    case SimdLevel::avx2: return *gemm_kernels_avx2();
    case SimdLevel::scalar: break;
  }
#else
  (void)exact_in_bf16;
#endif
  return *gemm_kernels_scalar();
}

bool folds_scales(const GemmKernels& kernels, const GemmArgs& args) {
  return kernels.fold_scales != nullptr && args.blocks.cols > 0 && args.power_of_two_scales &&
         groups_are_whole_tiles(args) && (args.a_type != Storage::BF16 || args.a_scale_inv == nullptr);
}

void check(bool ok, const char* what, std::int64_t found, const char* allowed,
           std::optional<std::int64_t> length = {}) {
  if (!ok)
    io::fail<std::invalid_argument>("[gemm] {} must be {}{}, got {}", what, allowed,
                                    length ? std::to_string(*length) : "", found);
}

void check_pointer(const void* pointer, const char* what) {
  if (!pointer) io::fail<std::invalid_argument>("[gemm] {} must be a pointer, got null", what);
}

void check_args(const GemmArgs& args) {
  check(args.m >= 0, "m", args.m, ">= 0");
  check(args.n >= 0, "n", args.n, ">= 0");
  check(args.k >= 0, "k", args.k, ">= 0");
  packed_bytes(args.n, args.k);  // throws when the weight cannot exist
  if (args.m > 1) {
    check(args.a_stride >= args.k, "a_stride", args.a_stride, ">= k = ", args.k);
    check(args.y_stride >= args.n, "y_stride", args.y_stride, ">= n = ", args.n);
  }
  check(args.a_scale_stride == 0 || args.a_scale_stride == 1, "a_scale_stride", args.a_scale_stride, "0 or 1");
  check(args.w_scale_stride == 0 || args.w_scale_stride == 1, "w_scale_stride", args.w_scale_stride, "0 or 1");
  if (args.blocks.cols != 0) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    check(args.blocks.cols > 0 && args.blocks.cols <= kMost && args.blocks.cols % kLineK == 0, "blocks.cols",
          args.blocks.cols, "0 or a multiple of 4 up to 2^40");
    check(args.blocks.rows >= 1 && args.blocks.rows <= kMost, "blocks.rows", args.blocks.rows, "1 to 2^40");
    check(args.blocks.first_row >= 0 && args.blocks.first_row < args.blocks.rows, "blocks.first_row",
          args.blocks.first_row, ">= 0 and below blocks.rows");
  }
  if (args.m == 0 || args.n == 0) return;
  check_pointer(args.y, "y");
  if (args.blocks.cols != 0) check_pointer(args.w_scale_inv, "w_scale_inv of groups");
  if (args.k == 0) return;
  check_pointer(args.a, "a");
  check_pointer(args.w, "w");
}

void check_together(const GemmArgs& args, const GemmArgs& first) {
  check(args.m == first.m, "m", args.m, "that of the first product");
  check(args.k == first.k, "k", args.k, "that of the first product");
  check(args.blocks.cols == first.blocks.cols, "blocks.cols", args.blocks.cols, "that of the first product");
  if (first.blocks.cols > 0) {
    check(args.power_of_two_scales == first.power_of_two_scales, "power_of_two_scales", args.power_of_two_scales,
          "that of the first product");
    if (first.power_of_two_scales && args.a_scale_inv != first.a_scale_inv)
      throw std::invalid_argument("[gemm] a_scale_inv must be that of the first product, with power_of_two_scales");
  }
  if (args.a != first.a || args.a_type != first.a_type || (args.m > 1 && args.a_stride != first.a_stride))
    throw std::invalid_argument("[gemm] a must be that of the first product");
}

// One chunk of rows: what every unit of work needs to know.
struct Chunk {
  std::span<const GemmArgs> products;
  const GemmKernels& kernels;
  GemmPlan plan;
  std::int64_t row0, rows, tiles;
  std::int64_t padded_k, lines;
  const std::uint8_t* x;       // packed activations
  std::int64_t x_tile_stride;  // bytes
  bool folded;                 // scales of groups are in what is multiplied (gemm_operands.h)
  const float* largest;        // then [rows], of those of A, or nullptr
};

// One unit of work: `blocks` blocks of a product from block0 on, tiles [tile0, tile1), and its scratch.
struct Unit {
  const GemmArgs& args;
  std::int64_t block0;
  int blocks;
  std::int64_t tile0, tile1;
  std::uint8_t* lines;
  void* panel;
};

// A range of packed lines, and what the thread reads after it: the next range, or the first of the blocks behind.
void read_packed(const Chunk& chunk, const Unit& unit, std::int64_t line, std::int64_t range_lines,
                 MultiplyArgs& multiply) {
  const std::int64_t behind = unit.block0 + unit.blocks;
  multiply.block_stride = chunk.lines * kLineBytes;
  multiply.lines = multiply.next = unit.args.w + unit.block0 * multiply.block_stride + line * kLineBytes;
  if (line + range_lines < chunk.lines)
    multiply.next += range_lines * kLineBytes;
  else if (behind * kBlockChannels < unit.args.n)
    multiply.next = unit.args.w + behind * multiply.block_stride;
  multiply.prefetch = chunk.kernels.packed_prefetch;
}

// Sums over all lines into acc; with `group` into its total.
void accumulate_lines(const Chunk& chunk, const Unit& unit, float* acc, const GroupScales* group,
                      const WeightFolds* folds) {
  const std::int64_t block0 = unit.block0, tile0 = unit.tile0;
  const int blocks = unit.blocks;
  std::uint8_t* lines_scratch = unit.lines;
  const GemmArgs& args = unit.args;
  const GemmPlan& plan = chunk.plan;
  const bool packed = args.w_layout == Layout::packed;
  const std::int64_t range_lines = packed ? plan.packed_range_lines : plan.range_lines;
  MultiplyArgs multiply;
  multiply.blocks = blocks;
  multiply.format = args.w_format;
  multiply.tables = &code_tables(args.w_format);
  multiply.x_tile_stride = chunk.x_tile_stride;
  multiply.acc = acc;
  multiply.panel = unit.panel;
  multiply.plan = plan;
  multiply.tiles = unit.tile1 - tile0;
  multiply.group = group;
  multiply.folds = folds;
  const auto x_at = [&](std::int64_t line) {
    return chunk.x + tile0 * chunk.x_tile_stride +
           line * kLineK * plan.tile_rows * element_bytes(chunk.kernels.x_layout);
  };
  const bool whole_blocks = (block0 + blocks) * kBlockChannels <= args.n;
  if (!packed && whole_blocks && plan.tile_rows <= chunk.kernels.row_major_tile && chunk.lines > 0) {
    multiply.lines = args.w + block0 * kBlockChannels * args.k;
    multiply.row_stride = multiply.k = args.k;
    multiply.prefetch = kRowPrefetch;
    multiply.x = x_at(0);
    multiply.first = true;
    chunk.kernels.multiply_row_major(multiply);
    return;
  }
  for (std::int64_t line = 0; line < chunk.lines; line += range_lines) {
    multiply.range_lines = std::min(range_lines, chunk.lines - line);
    if (packed) {
      read_packed(chunk, unit, line, range_lines, multiply);
    } else {
      multiply.lines = multiply.next = lines_scratch;
      multiply.block_stride = range_lines * kLineBytes;
      const std::int64_t k0 = line * kLineK, k = std::min(multiply.range_lines * kLineK, args.k - k0);
      for (int b = 0; b < blocks; ++b) {
        const std::int64_t row = (block0 + b) * kBlockChannels;
        chunk.kernels.pack_lines(args.w + row * args.k + k0, args.k,
                                 static_cast<int>(std::min<std::int64_t>(kBlockChannels, args.n - row)), k,
                                 kRowPrefetch, lines_scratch + b * multiply.block_stride);
      }
    }
    multiply.first = group != nullptr ? line % group->lines == 0 : line == 0;
    multiply.begin_line = line;
    multiply.x = x_at(line);
    chunk.kernels.multiply(multiply);
  }
}

std::int64_t valid_rows(const Chunk& chunk, const Unit& unit) {
  return std::min(chunk.rows, unit.tile1 * chunk.plan.tile_rows) - unit.tile0 * chunk.plan.tile_rows;
}

std::int64_t groups_of(const GemmArgs& args) {
  return args.blocks.cols > 0 ? (args.k + args.blocks.cols - 1) / args.blocks.cols : 0;
}

// The scales of the channel of each lane of acc.
using LaneScales = std::array<const float*, kMostLanes>;
LaneScales lane_scales(const Chunk& chunk, const Unit& unit, std::int64_t groups) {
  const GemmArgs& args = unit.args;
  const std::int64_t lanes = chunk.kernels.acc_floats, width = unit.blocks * lanes;
  LaneScales scale;
  for (std::int64_t lane = 0; lane < width; ++lane) {
    const std::int64_t channel = std::min(unit.block0 * kBlockChannels + lane * kBlockChannels / lanes, args.n - 1);
    scale[static_cast<std::size_t>(lane)] =
        args.w_scale_inv + (args.blocks.first_row + channel) / args.blocks.rows * groups;
  }
  return scale;
}

// GroupScales::lane_scale: channels of one block of W share a scale.
void spread_scales(const Chunk& chunk, const Unit& unit, std::int64_t groups, float* lane_scale) {
  const std::int64_t width = unit.blocks * chunk.kernels.acc_floats;
  const LaneScales scale = lane_scales(chunk, unit, groups);
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t lane = 0; lane < width; ++lane) *lane_scale++ = scale[static_cast<std::size_t>(lane)][g];
}

// Range by range of blocks.cols columns, their scaled sums into total. lane_scale: scratch, [groups][width].
void accumulate_scaled(const Chunk& chunk, const Unit& unit, float* acc, float* total, float* lane_scale) {
  const GemmArgs& args = unit.args;
  GroupScales group;
  group.lines = args.blocks.cols / kLineK;
  group.all_lines = chunk.lines;
  group.groups = groups_of(args);
  group.lane_scale = lane_scale;
  if (args.a_scale_inv)
    group.a_scale = args.a_scale_inv + (chunk.row0 + unit.tile0 * chunk.plan.tile_rows) * group.groups;
  group.rows = valid_rows(chunk, unit);
  group.total = total;
  spread_scales(chunk, unit, group.groups, lane_scale);
  accumulate_lines(chunk, unit, acc, &group, nullptr);
}

// Over all of k, with scales of groups folded in. scratch: [groups][width]; largest: [width], of those of W.
void accumulate_folded(const Chunk& chunk, const Unit& unit, float* acc, std::uint32_t* scratch, float* largest) {
  const std::int64_t groups = groups_of(unit.args);
  const LaneScales scale = lane_scales(chunk, unit, groups);
  chunk.kernels.fold_scales(scale.data(), unit.blocks, groups, scratch, largest);
  const WeightFolds folds{unit.args.blocks.cols / kLineK, scratch};
  accumulate_lines(chunk, unit, acc, nullptr, &folds);
}

void finish_group(const Chunk& chunk, const Unit& unit, const float* acc, const float* w_largest) {
  static constexpr float kOne = 1.0f;
  const GemmArgs& args = unit.args;
  const bool grouped = args.blocks.cols > 0;  // scaled already
  const int blocks = unit.blocks;
  const std::int64_t row = chunk.row0 + unit.tile0 * chunk.plan.tile_rows, column = unit.block0 * kBlockChannels;
  FinishArgs finish;
  finish.acc = acc;
  finish.blocks = blocks;
  finish.rows = valid_rows(chunk, unit);
  finish.channels = static_cast<int>(std::min<std::int64_t>(std::int64_t{blocks} * kBlockChannels, args.n - column));
  finish.format = args.w_format;
  finish.a_scale_stride = args.a_scale_inv && !grouped ? args.a_scale_stride : 0;
  finish.w_scale_stride = args.w_scale_inv && !grouped ? args.w_scale_stride : 0;
  finish.a_scale_inv = args.a_scale_inv && !grouped ? args.a_scale_inv + row * finish.a_scale_stride : &kOne;
  finish.w_scale_inv = args.w_scale_inv && !grouped ? args.w_scale_inv + column * finish.w_scale_stride : &kOne;
  if (chunk.folded) {
    finish.w_scale_inv = w_largest, finish.w_scale_stride = 1;
    if (chunk.largest) finish.a_scale_inv = chunk.largest + (row - chunk.row0), finish.a_scale_stride = 1;
  }
  if (args.bias) finish.bias = static_cast<const std::uint8_t*>(args.bias) + column * size_of(args.bias_type);
  finish.bias_type = args.bias_type;
  finish.y = static_cast<std::uint8_t*>(args.y) + (row * args.y_stride + column) * size_of(args.y_type);
  finish.y_type = args.y_type;
  finish.y_stride = args.y_stride;
  finish.accumulate = args.accumulate;
  chunk.kernels.finish(finish);
}

std::int64_t blocks_of(const GemmArgs& args) { return (args.n + kBlockChannels - 1) / kBlockChannels; }

std::int64_t groups_of_blocks(const GemmArgs& args, const GemmPlan& plan) {
  return (blocks_of(args) + plan.blocks - 1) / plan.blocks;
}

// The product that a group of blocks, counted over all of them, is in, and its number there.
std::pair<const GemmArgs*, std::int64_t> product_of(const Chunk& chunk, std::int64_t group) {
  const GemmArgs* args = chunk.products.data();
  for (std::int64_t count; group >= (count = groups_of_blocks(*args, chunk.plan)); ++args) group -= count;
  return {args, group};
}

void run_chunk(const Chunk& chunk) {
  const GemmPlan& plan = chunk.plan;
  std::int64_t groups = 0;
  for (const GemmArgs& args : chunk.products) groups += groups_of_blocks(args, plan);
  // Few groups and many tiles: cut the rows too. Every output is the same chain of sums either way.
  const std::int64_t wanted = std::int64_t{4} * num_threads();
  const std::int64_t parts = groups >= wanted ? 1 : std::min(chunk.tiles, (wanted + groups - 1) / groups);
  const std::int64_t part_tiles = (chunk.tiles + parts - 1) / parts;
  // A unit's time, from 16 bytes of weights and 64 products per ns; at least 5 us per fork.
  const double group_bytes =
      static_cast<double>(plan.blocks) * kBlockChannels * static_cast<double>(chunk.padded_k) + 64.0;
  const double unit_ns = group_bytes / 16 + group_bytes * static_cast<double>(part_tiles) * plan.tile_rows / 64;
  const std::int64_t grain = std::max<std::int64_t>(1, static_cast<std::int64_t>(5000 / unit_ns));

  const bool grouped = chunk.products.front().blocks.cols > 0 && !chunk.folded;
  const std::int64_t lines_bytes = std::int64_t{plan.range_lines} * kLineBytes * plan.blocks;
  const std::int64_t row_floats = std::int64_t{plan.blocks} * chunk.kernels.acc_floats,
                     acc_floats = part_tiles * plan.tile_rows * row_floats;
  const std::int64_t panel_bytes = round_up(chunk.kernels.panel_bytes, 64);
  const std::int64_t sums_bytes = ((grouped ? 2 : 1) * acc_floats + groups_of(chunk.products.front()) * row_floats) * 4;
  const auto units = [&](std::int64_t begin, std::int64_t end) {
    thread_local Scratch scratch;
    std::uint8_t* lines = scratch.get(lines_bytes + panel_bytes + sums_bytes);
    auto* acc = reinterpret_cast<float*>(lines + lines_bytes + panel_bytes);
    float *total = grouped ? acc + acc_floats : acc, *lane_scale = total + acc_floats;
    for (std::int64_t at = begin; at < end; ++at) {
      const auto [args, group] = product_of(chunk, at / parts);
      const std::int64_t block0 = group * plan.blocks;
      const int blocks = static_cast<int>(std::min<std::int64_t>(plan.blocks, blocks_of(*args) - block0));
      const std::int64_t tile0 = at % parts * part_tiles, tile1 = std::min(chunk.tiles, tile0 + part_tiles);
      if (tile0 >= tile1) continue;
      const Unit unit{*args, block0, blocks, tile0, tile1, lines, lines + lines_bytes};
      if (chunk.lines == 0) std::memset(total, 0, static_cast<std::size_t>(acc_floats) * 4);
      std::array<float, kMostLanes> w_largest;
      if (chunk.folded)
        accumulate_folded(chunk, unit, acc, reinterpret_cast<std::uint32_t*>(lane_scale), w_largest.data());
      else if (grouped)
        accumulate_scaled(chunk, unit, acc, total, lane_scale);
      else
        accumulate_lines(chunk, unit, acc, nullptr, nullptr);
      finish_group(chunk, unit, total, w_largest.data());
    }
  };
  parallel_for(groups * parts, grain, std::ref(units));  // by reference: a std::function of it would take memory
}

void run(std::span<const GemmArgs> products) {
  const GemmArgs& args = products.front();
  const GemmKernels& kernels = kernels_for(args);
  const std::int64_t lines = (args.k + kLineK - 1) / kLineK, padded_k = round_up(args.k, k_unit(kernels.x_layout));
  const std::int64_t row_bytes = std::max<std::int64_t>(1, padded_k * element_bytes(kernels.x_layout));
  const std::int64_t chunk_rows = std::clamp(kernels.chunk_bytes / row_bytes, kernels.least_chunk_rows, kChunkRows);
  const bool packs_for_each_chunk =
      kernels.x_layout == XLayout::BF16Tile && args.w_layout == Layout::row_major && args.m > chunk_rows && args.k > 0;
  if (products.size() == 1 && packs_for_each_chunk)
    return for_panels(args, kernels, [](const GemmArgs& part) { run({&part, 1}); });
  thread_local Scratch activations;
  const bool folded = folds_scales(kernels, args);
  std::array<float, kChunkRows> largest;
  const float* row_scale = folded && args.a_scale_inv ? largest.data() : nullptr;
  for (std::int64_t row0 = 0; row0 < args.m; row0 += chunk_rows) {
    const std::int64_t rows = std::min(chunk_rows, args.m - row0);
    const GemmPlan plan = kernels.plan(rows);
    const std::int64_t tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
    const std::int64_t tile_bytes = tile_stride(plan.tile_rows, args.k, kernels.x_layout);
    std::uint8_t* x = activations.get(tiles * tile_bytes);
    const std::int64_t groups = groups_of(args);
    for (std::int64_t r = 0; row_scale != nullptr && r < rows; ++r)
      largest[static_cast<std::size_t>(r)] = largest_scale(args.a_scale_inv + (row0 + r) * groups, groups);
    if (args.k > 0) pack_activations(args, row0, rows, plan.tile_rows, kernels.x_layout, x, row_scale);
    run_chunk(Chunk{products, kernels, plan, row0, rows, tiles, padded_k, lines, x, tile_bytes, folded, row_scale});
  }
}

}  // namespace

void gemm(const GemmArgs& args) { gemm_together({&args, 1}); }

void gemm_together(std::span<const GemmArgs> products) {
  std::int64_t outputs = 0;
  for (const GemmArgs& args : products) {
    check_args(args);
    check_together(args, products.front());
    outputs += args.n;
  }
  if (outputs == 0 || products.front().m == 0) return;
  std::vector<NonFiniteOutputs> non_finite;  // first: they read the y to add to
  for (const GemmArgs& args : products)
    if (args.dialect == Dialect::gaudi2 && args.n > 0) non_finite.emplace_back(args);
  run(products);
  for (const NonFiniteOutputs& found : non_finite) found.write();
}

}  // namespace fp8::kernels
