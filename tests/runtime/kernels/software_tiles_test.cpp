// SPDX-License-Identifier: Apache-2.0
// SoftwareTiles against the manual's arithmetic (amx_reference.h), to the bit, and what it refuses.
#include "fp8/runtime/kernels/gemm/software_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/kernels/simd.h"
#include "runtime/kernels/amx_reference.h"

namespace fp8::kernels {
namespace {

using test::manual_dot;
using test::same_float;

class SoftwareTilesTest : public testing::Test {
 protected:
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
  const auto error_of = [](const std::function<void(TileConfig&)>& change,
                           const std::function<void(SoftwareTiles&)>& use) {
    TileConfig config = shapes(16, 16, 16);
    change(config);
    SoftwareTiles tiles;
    try {
      tiles.configure(config);
      use(tiles);
    } catch (const std::logic_error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto same = [](TileConfig&) {};
  const auto nothing = [](SoftwareTiles&) {};
  const auto dot = [](SoftwareTiles& tiles) { tiles.dot(0, 1, 2); };
  EXPECT_EQ(error_of(same, dot), "none");
  EXPECT_EQ(error_of([](TileConfig& c) { c.palette = 2; }, nothing), "[tiles] found palette 2, allowed: 1");
  EXPECT_EQ(error_of([](TileConfig& c) { c.rows[4] = 17; }, nothing), "[tiles] found rows 17, allowed: up to 16");
  EXPECT_EQ(error_of([](TileConfig& c) { c.row_bytes[0] = 68; }, nothing),
            "[tiles] found bytes per row 68, allowed: up to 64");
  EXPECT_EQ(error_of([](TileConfig& c) { c.row_bytes[5] = 4; }, nothing),
            "[tiles] found rows or bytes of 0 in tile 5, allowed: both or neither");
  EXPECT_EQ(error_of([](TileConfig& c) { c.rows[8] = 1; }, nothing),
            "[tiles] found a shape of tile 8, allowed: 8 tiles");
  EXPECT_EQ(error_of([](TileConfig& c) { c.reserved[13] = 1; }, nothing), "[tiles] found reserved byte 1, allowed: 0");
  EXPECT_EQ(error_of([](TileConfig& c) { c.row_bytes[1] = 62; }, dot),
            "[tiles] found bytes per row 62, allowed: multiples of 4");
  EXPECT_EQ(error_of([](TileConfig& c) { c.rows[1] = 15; }, dot), "[tiles] found rows of A 15, allowed: those of C");
  EXPECT_EQ(error_of([](TileConfig& c) { c.row_bytes[2] = 60; }, dot),
            "[tiles] found bytes per row of B 60, allowed: those of C");
  EXPECT_EQ(error_of([](TileConfig& c) { c.rows[2] = 15; }, dot),
            "[tiles] found rows of B 15, allowed: a quarter of A's bytes per row");
  EXPECT_EQ(error_of(same, [](SoftwareTiles& tiles) { tiles.dot(0, 1, 1); }),
            "[tiles] found the same tile twice: 1, allowed: three tiles");
  EXPECT_EQ(error_of(same, [](SoftwareTiles& tiles) { tiles.zero(3); }),
            "[tiles] found a tile without rows: 3, allowed: those that are configured");
  EXPECT_EQ(error_of(same, [](SoftwareTiles& tiles) { tiles.zero(8); }), "[tiles] found tile 8, allowed: 0 to 7");
  EXPECT_EQ(error_of(same,
                     [](SoftwareTiles& tiles) {
                       tiles.release();
                       tiles.zero(0);
                     }),
            "[tiles] found palette 0, allowed: 1");
}

}  // namespace
}  // namespace fp8::kernels
