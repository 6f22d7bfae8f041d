// SPDX-License-Identifier: Apache-2.0
// The products of level avx512bf16 as wide and as narrow datapaths make them (wide_datapath()): the same bits, for
// every number of rows in a tile. gemm_test compares the one that this machine takes with sums in f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "fp8/runtime/kernels/gemm/gemm_operands.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

#if defined(__x86_64__)
namespace fp8::kernels {
namespace {

constexpr int kBlocks = 5;  // more than are worked on together, and one left over
constexpr std::int64_t kLines = 40, kGroupLines = 16;

struct Operands {
  std::vector<std::uint8_t> lines;
  std::vector<std::uint16_t> items;  // bf16; of two as one f32 they are finite too
  std::vector<std::uint32_t> folds;  // of groups of kGroupLines (gemm_operands.h)
  Operands() : lines(kBlocks * kLines * kLineBytes), items(128 * 1024) {
    std::minstd_rand random(3);
    for (auto& code : lines) code = static_cast<std::uint8_t>(random() % 0x7F | (random() % 2) << 7);
    for (auto& item : items) item = static_cast<std::uint16_t>(0x3E00 + random() % 0x200 + (random() % 2) * 0x8000);
    for (int i = 0; i < kBlocks * kBlockChannels * 3; ++i)
      folds.push_back((static_cast<std::uint32_t>(random() % 4) << 7 | 1) * 0x10001u);
  }
};

enum class Weight { packed, rows, folded_packed, folded_rows };  // in rows few rows of x are multiplied with it

/// acc of one range of all tiles.
std::vector<float> sums(const GemmKernels& kernels, const Operands& operands, std::int64_t m, Weight weight) {
  MultiplyArgs args{.plan = kernels.plan(m)};
  args.tiles = (m + args.plan.tile_rows - 1) / args.plan.tile_rows;
  args.lines = args.next = operands.lines.data();
  const WeightFolds folds{kGroupLines, operands.folds.data()};
  const bool folded = weight == Weight::folded_packed || weight == Weight::folded_rows;
  args.folds = folded ? &folds : nullptr;
  args.block_stride = kLines * kLineBytes;
  args.row_stride = args.k = kLines * kLineK;
  args.blocks = kBlocks;
  args.range_lines = kLines;
  args.tables = &code_tables(Format::E4M3);
  args.x = operands.items.data();
  args.x_tile_stride = kLines * kLineK * args.plan.tile_rows * element_bytes(kernels.x_layout);
  EXPECT_LE(args.tiles * args.x_tile_stride, static_cast<std::int64_t>(operands.items.size() * 2));
  std::vector<float> acc(static_cast<std::size_t>(args.tiles * args.plan.tile_rows * kBlocks * kBlockChannels), NAN);
  Scratch panel;
  args.acc = acc.data();
  args.panel = panel.get(kernels.panel_bytes);
  args.first = true;
  const bool rows = weight == Weight::rows || weight == Weight::folded_rows;
  (rows ? kernels.multiply_row_major : kernels.multiply)(args);
  return acc;
}

void expect_same_bits(const Operands& operands, bool dot, std::int64_t m, Weight weight) {
  const GemmKernels &narrow = *gemm_kernels_avx512bf16(dot, false), &wide = *gemm_kernels_avx512bf16(dot, true);
  ASSERT_NE(&narrow, &wide);
  const auto expected = sums(narrow, operands, m, weight), found = sums(wide, operands, m, weight);
  ASSERT_EQ(expected.size(), found.size());
  EXPECT_EQ(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)), 0) << m << " rows";
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](float sum) { return std::isfinite(sum); })) << m;
}

TEST(GemmDatapath, BothGiveTheSameBits) {
  if (best_simd_level() < SimdLevel::avx512bf16) GTEST_SKIP() << "this machine has no AVX512-BF16";
  const Operands operands;
  for (const bool dot : {true, false}) {
    for (const Weight weight : {Weight::packed, Weight::folded_packed}) {
      if (weight == Weight::folded_packed && !dot) continue;  // in f32 nothing is folded
      for (std::int64_t m = 1; m <= 64; ++m) expect_same_bits(operands, dot, m, weight);
      for (std::int64_t m = 257; m <= 320; ++m) expect_same_bits(operands, dot, m, weight);  // through panels
    }
    for (std::int64_t m = 1; m <= gemm_kernels_avx512bf16(dot, true)->row_major_tile; ++m) {
      expect_same_bits(operands, dot, m, Weight::rows);
      if (dot) expect_same_bits(operands, dot, m, Weight::folded_rows);
    }
  }
}

}  // namespace
}  // namespace fp8::kernels
#endif
