// SPDX-License-Identifier: Apache-2.0
// gemm at level amx: each output is the manual's chain of tdpbf16ps over blocks of 32 k (amx_reference.h), to the bit,
// by software tiles and by the instructions themselves, which trap where the CPU has none (amx_reference.h).

#include "fp8/runtime/kernels/gemm/gemm_operands.h"
#include "runtime/kernels/amx_reference.h"
#include "runtime/kernels/gemm_problem.h"

namespace fp8::kernels {
namespace {

using test::AmxTrap;
using test::manual_dot;
using test::Problem;
using test::same_float;

struct GemmAmx : testing::Test {
  void SetUp() override {
    if (best_scoped_level() < SimdLevel::amx) GTEST_SKIP() << "level amx needs AVX-512 with VBMI and BF16";
  }
};

Problem problem(std::int64_t m, std::int64_t n, std::int64_t k, Storage a_type, Format w_format) {
  Problem p;
  p.m = m, p.n = n, p.k = k, p.a_type = a_type, p.w_format = w_format;
  p.fill(static_cast<unsigned>(m * 1000 + n * 10 + k));
  p.a_scale = p.w_scale = {1.0f};
  return p;
}

/// [m, n] over the k in [from, to): from 0, one manual_dot for each 32 k; what they do not fill is 0.
std::vector<float> expected_sums(const Problem& p, std::int64_t from, std::int64_t to) {
  std::vector<float> sums;
  for (std::int64_t r = 0; r < p.m; ++r)
    for (std::int64_t c = 0; c < p.n; ++c) {
      float sum = 0;
      for (std::int64_t k0 = from; k0 < to; k0 += 32) {
        std::uint16_t a[32] = {}, b[32] = {};
        for (std::int64_t i = 0; i < 32 && k0 + i < to; ++i) {
          a[i] = test::bf16_bits(p.a_at(r, k0 + i));
          b[i] = test::bf16_bits(p.w_at(c, k0 + i));
        }
        sum = test::manual_dot(sum, a, b);
      }
      sums.push_back(sum);
    }
  return sums;
}
std::vector<float> expected_sums(const Problem& p) { return expected_sums(p, 0, p.k); }

TEST_F(GemmAmx, OutputsAreTheManualsToTheBit) {
  const ScopedSimdLevel level(SimdLevel::amx);
  for (const std::int64_t m : {1, 2, 9, 16, 17, 33, 70})
    for (const std::int64_t n : {3, 16, 40})
      for (const std::int64_t k : {1, 6, 31, 32, 33, 100, 513, 1100}) {
        const Problem p = problem(m, n, k,
                                  m % 2   ? Storage::BF16
                                  : k % 2 ? Storage::E4M3
                                          : Storage::E5M2,
                                  n % 2 ? Format::E5M2 : Format::E4M3);
        const std::vector<float> expected = expected_sums(p);
        for (const Layout layout : {Layout::packed, Layout::row_major}) {
          const std::vector<std::uint8_t> y = p.run(layout);
          for (std::int64_t i = 0; i < m * n; ++i)
            ASSERT_TRUE(test::same_float(static_cast<float>(test::load(y, FloatType::F32, i)),
                                         expected[static_cast<std::size_t>(i)]))
                << m << "x" << n << "x" << k << " at " << i / n << "," << i % n;
        }
      }
}

/// Sums of one group after the other, each scaled: total + sum * (a_scale_inv * w_scale_inv), all in f32.
std::vector<float> expected_totals(const Problem& p, const GemmArgs& args) {
  const std::int64_t groups = (p.k + args.blocks.cols - 1) / args.blocks.cols;
  std::vector<float> totals(static_cast<std::size_t>(p.m * p.n));
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::vector<float> sums = expected_sums(p, g * args.blocks.cols, std::min(p.k, (g + 1) * args.blocks.cols));
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      const float scale =
          args.a_scale_inv[i / p.n * groups + g] * args.w_scale_inv[i % p.n / args.blocks.rows * groups + g];
      const float scaled = sums[static_cast<std::size_t>(i)] * scale;
      float& total = totals[static_cast<std::size_t>(i)];
      total = g == 0 ? scaled : total + scaled;
    }
  }
  return totals;
}

std::vector<float> random_scales(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> scales(static_cast<std::size_t>(count));
  for (float& scale : scales) scale = 0.5f + static_cast<float>(random() % 1000) * 1e-3f;
  return scales;
}

TEST_F(GemmAmx, GroupsOfWholeTilesAreSummedOneAfterTheOther) {
  const ScopedSimdLevel level(SimdLevel::amx);
  for (const std::int64_t m : {1, 2, 3, 16, 37, 70})
    for (const std::int64_t n : {16, 40})
      for (const std::int64_t k : {20, 64, 130, 1100})
        for (const std::int64_t group : {32, 128, 1024, 2048}) {
          const Problem p = problem(m, n, k, m % 2 ? Storage::BF16 : Storage::E4M3, Format::E4M3);
          const std::int64_t groups = (k + group - 1) / group;
          const auto a_scale = random_scales(m * groups, 1), w_scale = random_scales((n + 6) / 7 * groups, 2);
          for (const Layout layout : {Layout::packed, Layout::row_major}) {
            std::vector<std::uint8_t> y = p.y0;
            GemmArgs args = p.args(layout, y);
            args.blocks.cols = group, args.blocks.rows = 7;
            args.a_scale_inv = a_scale.data(), args.w_scale_inv = w_scale.data();
            gemm(args);
            const std::vector<float> expected = expected_totals(p, args);
            for (std::int64_t i = 0; i < m * n; ++i)
              ASSERT_TRUE(test::same_float(static_cast<float>(test::load(y, FloatType::F32, i)),
                                           expected[static_cast<std::size_t>(i)]))
                  << m << "x" << n << "x" << k << " in " << group << " at " << i / n << "," << i % n;
          }
        }
}

// Activations in f32 or f16, and groups that are no whole tiles, have avx512bf16's bits.
TEST_F(GemmAmx, WhatHasNoTilesIsAvx512Bf16s) {
  for (const auto a_type : {Storage::F32, Storage::F16, Storage::E4M3}) {
    const Problem p = problem(20, 40, 130, a_type, Format::E4M3);
    const std::vector<float> scales(2 * 40, 0.5f);
    const auto run = [&](SimdLevel at) {
      const ScopedSimdLevel level(at);
      std::vector<std::uint8_t> y = p.y0;
      GemmArgs args = p.args(Layout::packed, y);
      if (a_type == Storage::E4M3) args.blocks.cols = 100, args.a_scale_inv = nullptr, args.w_scale_inv = scales.data();
      gemm(args);
      return y;
    };
    EXPECT_EQ(run(SimdLevel::amx), run(SimdLevel::avx512bf16));
  }
}

/// acc of all blocks and tiles by `kernels`, the lines of k in ranges of the plan; folds: of the weights, or nullptr.
std::vector<float> accumulate(const GemmKernels& kernels, const Problem& p, const WeightFolds* folds = nullptr) {
  const GemmPlan plan = kernels.plan(p.m);
  const std::int64_t lines = (p.k + kLineK - 1) / kLineK, tiles = (p.m + plan.tile_rows - 1) / plan.tile_rows;
  const std::int64_t tile_bytes = tile_stride(plan.tile_rows, p.k, kernels.x_layout);
  std::vector<std::uint8_t> x(static_cast<std::size_t>(tiles * tile_bytes)),
      panel_bytes(static_cast<std::size_t>(kernels.panel_bytes + 64));
  std::vector<std::uint8_t> unused;
  pack_activations(p.args(Layout::packed, unused), 0, p.m, plan.tile_rows, kernels.x_layout, x.data());
  MultiplyArgs args{.block_stride = lines * kLineBytes,
                    .blocks = static_cast<int>((p.n + kBlockChannels - 1) / kBlockChannels),
                    .format = p.w_format,
                    .tables = &code_tables(p.w_format),
                    .x_tile_stride = tile_bytes,
                    .tiles = tiles,
                    .plan = plan};
  void* panel = panel_bytes.data();
  std::size_t space = panel_bytes.size();
  args.panel = std::align(64, static_cast<std::size_t>(kernels.panel_bytes), panel, space);
  std::vector<float> acc(static_cast<std::size_t>(tiles * plan.tile_rows * args.blocks * kBlockChannels), test::kNan);
  args.acc = acc.data();
  for (std::int64_t line = 0; line < lines; line += plan.range_lines) {
    args.lines = p.packed.data() + line * kLineBytes;
    args.range_lines = std::min<std::int64_t>(plan.range_lines, lines - line);
    args.x = x.data() + line * kLineK * plan.tile_rows * 2;
    args.first = line == 0;
    args.folds = folds, args.begin_line = line;
    kernels.multiply(args);
  }
  std::vector<float> sums;
  for (std::int64_t r = 0; r < p.m; ++r)
    for (std::int64_t c = 0; c < p.n; ++c)
      sums.push_back(acc[static_cast<std::size_t>(r * args.blocks * kBlockChannels + c)]);
  return sums;
}

TEST_F(GemmAmx, TheInstructionsThemselvesGiveTheSameBits) {
  const bool hardware = best_simd_level() == SimdLevel::amx;
  for (const std::int64_t m : {3, 5, 16, 17, 33, 50, 70})
    for (const std::int64_t n : {16, 20, 48})
      for (const std::int64_t k : {4, 32, 37, 700}) {
        const Problem p = problem(m, n, k, Storage::BF16, Format::E4M3);
        std::vector<float> sums;
        AmxTrap::Counts counts;
        {
          const AmxTrap trap;
          sums = accumulate(*gemm_kernels_amx(true, m), p);
          EXPECT_STREQ(trap.error(), "");
          counts = trap.counts();
        }
        const std::string what = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
        const std::vector<float> expected = expected_sums(p);
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_TRUE(test::same_float(sums[i], expected[i])) << what << " " << i;
        EXPECT_EQ(accumulate(*gemm_kernels_amx(false, m), p), sums) << what;
        if (hardware) continue;
        // One configuration for each range of 512 k; each dot has a tile of C, of A and of B.
        const int ranges = static_cast<int>((k + 511) / 512), blocks = static_cast<int>((n + 15) / 16);
        const int tiles = static_cast<int>((m + 15) / 16), steps = static_cast<int>((k + 31) / 32);
        EXPECT_EQ(counts.configured, ranges) << what;
        EXPECT_EQ(counts.released, ranges) << what;
        EXPECT_EQ(counts.zeroed, blocks * tiles) << what;
        EXPECT_EQ(counts.stored, ranges * blocks * tiles) << what;
        EXPECT_EQ(counts.multiplied, steps * blocks * tiles) << what;
      }
}

// More rows than one chunk: row-major weights are packed in panels, here of 400 channels and the rest.
TEST_F(GemmAmx, RowMajorWeightsOfManyRowsHaveTheBitsOfPackedOnes) {
  const ScopedSimdLevel level(SimdLevel::amx);
  for (const bool grouped : {false, true}) {
    Problem p;
    p.m = 66, p.n = 411, p.k = 20970, p.a_type = Storage::E4M3;
    p.has_bias = p.accumulate = p.w_channels = p.a_rows = true;
    p.y_gap = 5;
    p.fill(1);
    const std::int64_t group = 4096, groups = (p.k + group - 1) / group;
    const auto a_scale = random_scales(p.m * groups, 1), w_scale = random_scales((p.n + 8) / 7 * groups, 2);
    const auto run = [&](Layout layout) {
      std::vector<std::uint8_t> y = p.y0;
      GemmArgs args = p.args(layout, y);
      if (grouped) {
        args.blocks.cols = group, args.blocks.rows = 7, args.blocks.first_row = 2;
        args.a_scale_inv = a_scale.data(), args.w_scale_inv = w_scale.data();
      }
      gemm(args);
      return y;
    };
    EXPECT_EQ(run(Layout::row_major), run(Layout::packed)) << grouped;
  }
}

TEST_F(GemmAmx, TheInstructionsFoldAsSoftwareDoes) {
  std::mt19937 random(1);
  for (const std::int64_t m : {3, 33, 70})
    for (const std::int64_t n : {16, 48})
      for (const std::int64_t group : {32, 96, 640}) {
        const Problem p = problem(m, n, 1100, Storage::BF16, Format::E4M3);
        std::vector<std::uint32_t> words(static_cast<std::size_t>((1100 + group - 1) / group * n));
        for (std::uint32_t& word : words) {
          const std::uint32_t steps = static_cast<std::uint32_t>(random() % (kMostFoldSteps + 2));
          word = (steps > kMostFoldSteps ? 0xFFFFu : steps << 7 | 1) * 0x10001u;
        }
        const WeightFolds folds{group / kLineK, words.data()};
        std::vector<float> sums;
        {
          const AmxTrap trap;
          sums = accumulate(*gemm_kernels_amx(true, m), p, &folds);
          EXPECT_STREQ(trap.error(), "");
        }
        EXPECT_EQ(accumulate(*gemm_kernels_amx(false, m), p, &folds), sums) << m << "x" << n << " in " << group;
        EXPECT_NE(accumulate(*gemm_kernels_amx(false, m), p), sums);
      }
}

// SoftwareTiles against the manual's arithmetic (amx_reference.h), to the bit, and what it refuses.

struct SoftwareTilesTest : testing::Test {
  void SetUp() override {
    if (best_simd_level() < SimdLevel::avx512) GTEST_SKIP() << "the tiles are computed in AVX-512";
  }
};

/// C m x n, A m x k pairs, B k x n pairs in tiles 0, 1, 2.
TileConfig shapes(int m, int n, int k) {
  TileConfig config{};
  config.palette = 1;
  config.rows[0] = config.rows[1] = static_cast<std::uint8_t>(m), config.rows[2] = static_cast<std::uint8_t>(k);
  config.row_bytes[0] = config.row_bytes[2] = static_cast<std::uint16_t>(4 * n);
  config.row_bytes[1] = static_cast<std::uint16_t>(4 * k);
  return config;
}

/// bf16 of three kinds: like activations, any bits (NaN, infinity, subnormal), products about the smallest normal
/// number.
std::uint16_t random_bf16(int kind, std::mt19937& random) {
  const auto bits = static_cast<std::uint16_t>(random() >> 8);
  if (kind == 0) return static_cast<std::uint16_t>((bits & 0x807F) | (120 + random() % 16) << 7);
  if (kind == 1) return bits;
  return static_cast<std::uint16_t>((bits & 0x807F) | (52 + random() % 16) << 7);
}

TEST_F(SoftwareTilesTest, EachDotIsTheManualsToTheBit) {
  std::mt19937 random(1);
  const auto up_to_16 = [&] { return static_cast<int>(random() % 16) + 1; };
  for (int turn = 0; turn < 600; ++turn) {
    const int m = up_to_16(), n = up_to_16(), k = up_to_16(), kind = turn % 3;
    const auto gap = [&] { return random() % 5; };
    const std::size_t a_row = static_cast<std::size_t>(2 * k) + gap(), b_row = static_cast<std::size_t>(2 * n) + gap(),
                      c_row = static_cast<std::size_t>(n) + gap();
    std::vector<std::uint16_t> a(a_row * 16), b(b_row * 16);
    for (auto* values : {&a, &b})
      for (auto& value : *values) value = random_bf16(kind, random);
    std::vector<float> c(c_row * 16);
    for (auto& value : c) value = test::f32_of_bf16(random_bf16(kind, random)) * (kind == 2 ? 0x1p-60f : 1.0f);
    const std::vector<float> before = c;

    SoftwareTiles tiles;
    tiles.configure(shapes(m, n, k));
    tiles.load(0, c.data(), static_cast<std::int64_t>(c_row * 4));
    tiles.load(1, a.data(), static_cast<std::int64_t>(a_row * 2));
    tiles.load(2, b.data(), static_cast<std::int64_t>(b_row * 2));
    tiles.dot(0, 1, 2);
    tiles.store(0, c.data(), static_cast<std::int64_t>(c_row * 4));

    std::vector<std::uint16_t> column(static_cast<std::size_t>(2 * k));
    for (std::size_t at = 0; at < c.size(); ++at) {
      const std::size_t row = at / c_row, col = at % c_row;
      float expected = before[at];
      if (row < static_cast<std::size_t>(m) && col < static_cast<std::size_t>(n)) {
        for (std::size_t i = 0; i < column.size(); ++i) column[i] = b[i / 2 * b_row + 2 * col + i % 2];
        expected = manual_dot(expected, {a.data() + row * a_row, column.size()}, column);
      }
      ASSERT_TRUE(same_float(c[at], expected)) << m << "x" << n << "x" << k << " kind " << kind << " at " << row << ","
                                               << col << ": " << c[at] << ", expected " << expected;
    }
  }
}

// 2^-126 - 1.5 * 2^-151 is 2^-126 when rounded to f32's subnormals, but tiny; 2^-126 - 2^-151 is a tie that is not. An
// odd product adds nothing.
TEST_F(SoftwareTilesTest, AResultIsTinyByItsRoundingWithoutASmallestExponent) {
  const auto bits = [](float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); };
  for (const auto& [factor, expected] : {std::pair{-1.0f, 0x1p-126f}, std::pair{-1.5f, 0.0f}}) {
    const std::uint16_t a[] = {bits(0x1p-63f), 0, bits(0x1p-75f), 0},
                        b[] = {bits(0x1p-63f), 0, bits(factor * 0x1p-76f), 0};
    float c = 1;
    SoftwareTiles tiles;
    tiles.configure(shapes(1, 1, 2));
    tiles.zero(0);
    tiles.load(1, a, 8);
    tiles.load(2, b, 4);
    tiles.dot(0, 1, 2);
    tiles.store(0, &c, 4);
    EXPECT_EQ(c, expected);
    EXPECT_EQ(manual_dot(0, a, b), expected);
  }
}

TEST_F(SoftwareTilesTest, RefusesWhatTheHardwareWould) {
  const auto message = [](const std::function<void(TileConfig&)>& change,
                          const std::function<void(SoftwareTiles&)>& use) {
    TileConfig config = shapes(16, 16, 16);
    change(config);
    SoftwareTiles tiles;
    return fp8::error_of<std::logic_error>([&] {
      tiles.configure(config);
      use(tiles);
    });
  };
  const auto same = [](TileConfig&) {};
  const auto nothing = [](SoftwareTiles&) {};
  const auto dot = [](SoftwareTiles& tiles) { tiles.dot(0, 1, 2); };
  EXPECT_EQ(message(same, dot), "");
  EXPECT_EQ(message([](TileConfig& c) { c.palette = 2; }, nothing), "[tiles] found palette 2, allowed: 1");
  EXPECT_EQ(message([](TileConfig& c) { c.rows[4] = 17; }, nothing), "[tiles] found rows 17, allowed: up to 16");
  EXPECT_EQ(message([](TileConfig& c) { c.row_bytes[0] = 68; }, nothing),
            "[tiles] found bytes per row 68, allowed: up to 64");
  EXPECT_EQ(message([](TileConfig& c) { c.row_bytes[5] = 4; }, nothing),
            "[tiles] found rows or bytes of 0 in tile 5, allowed: both or neither");
  EXPECT_EQ(message([](TileConfig& c) { c.rows[8] = 1; }, nothing),
            "[tiles] found a shape of tile 8, allowed: 8 tiles");
  EXPECT_EQ(message([](TileConfig& c) { c.reserved[13] = 1; }, nothing), "[tiles] found reserved byte 1, allowed: 0");
  EXPECT_EQ(message([](TileConfig& c) { c.row_bytes[1] = 62; }, dot),
            "[tiles] found bytes per row 62, allowed: multiples of 4");
  EXPECT_EQ(message([](TileConfig& c) { c.rows[1] = 15; }, dot), "[tiles] found rows of A 15, allowed: those of C");
  EXPECT_EQ(message([](TileConfig& c) { c.row_bytes[2] = 60; }, dot),
            "[tiles] found bytes per row of B 60, allowed: those of C");
  EXPECT_EQ(message([](TileConfig& c) { c.rows[2] = 15; }, dot),
            "[tiles] found rows of B 15, allowed: a quarter of A's bytes per row");
  EXPECT_EQ(message(same, [](SoftwareTiles& tiles) { tiles.dot(0, 1, 1); }),
            "[tiles] found the same tile twice: 1, allowed: three tiles");
  EXPECT_EQ(message(same, [](SoftwareTiles& tiles) { tiles.zero(3); }),
            "[tiles] found a tile without rows: 3, allowed: those that are configured");
  EXPECT_EQ(message(same, [](SoftwareTiles& tiles) { tiles.zero(8); }), "[tiles] found tile 8, allowed: 0 to 7");
  EXPECT_EQ(message(same,
                    [](SoftwareTiles& tiles) {
                      tiles.release();
                      tiles.zero(0);
                    }),
            "[tiles] found palette 0, allowed: 1");
}

}  // namespace
}  // namespace fp8::kernels
