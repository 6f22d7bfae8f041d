// SPDX-License-Identifier: Apache-2.0
// Decodes with a scale per block against the formula in f64, for f32 and E8M0 scales, every level and kind of block.
#include "runtime/kernels/block_cast_reference.h"
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

const Shape kShapes[] = {{1, 1, 1, 1},        {7, 1000, 1, 128},  {300, 37, 128, 1},
                         {130, 333, 32, 32},  {9, 2100, 4, 3},    {3, 1700, 1, 513},
                         {70, 600, 64, 4096}, {20, 77, 9999, 10}, {40, 4111, 128, 128}};

TEST(BlockDecode, IsTheRoundedProduct) {
  unsigned seed = 70;
  for (const Shape& s : kShapes) {
    std::mt19937 random(++seed);
    const std::size_t n = static_cast<std::size_t>(s.rows * s.cols);
    const std::int64_t across = tiles(s.cols, s.block_cols);
    std::vector<std::uint8_t> codes(n), e8m0(static_cast<std::size_t>(tiles(s.rows, s.block_rows) * across));
    std::vector<float> scale_inv(e8m0.size());
    for (auto& code : codes) code = static_cast<std::uint8_t>(random() % 0x78 | (random() & 0x80));
    for (auto& e : e8m0) e = static_cast<std::uint8_t>(117 + random() % 20);
    for (auto& v : scale_inv)
      v = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096, static_cast<int>(random() % 12) - 8);
    for (const Format format : {Format::E4M3, Format::E5M2}) {
      for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
        for (const bool mx : {false, true}) {
          for (const SimdLevel level : levels()) {
            const ScopedSimdLevel scoped(level);
            const Threads pool(level == levels().back() ? 3 : 1);
            std::vector<float> y(n);  // room for any type
            BlockDecodeArgs args;
            args.codes = codes.data();
            args.rows = s.rows;
            args.cols = s.cols;
            args.format = format;
            args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
            args.scale_inv = mx ? nullptr : scale_inv.data();
            args.e8m0 = mx ? e8m0.data() : nullptr;
            args.y = y.data();
            args.type = type;
            decode_blocks(args);
            for (std::size_t i = 0; i < n; ++i) {
              const auto r = static_cast<std::int64_t>(i) / s.cols, c = static_cast<std::int64_t>(i) % s.cols;
              const auto tile = static_cast<std::size_t>(r / s.block_rows * across + c / s.block_cols);
              const double scale = mx ? std::ldexp(1.0, e8m0[tile] - 127) : static_cast<double>(scale_inv[tile]);
              const double value = grid_value(codes[i] & 0x7F, format) * (codes[i] & 0x80 ? -1.0 : 1.0);
              ASSERT_EQ(element(y.data(), type, i),
                        round_to(static_cast<double>(static_cast<float>(value * scale)), type))
                  << name_of(level) << " " << name_of(type) << " element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(BlockDecode, NaNScalesAndTheSmallestExponent) {
  const std::vector<std::uint8_t> codes = {0x38, 0xB8}, e8m0 = {0x00, 0xFF};  // 1, -1
  std::vector<float> y(2);
  BlockDecodeArgs args;
  args.codes = codes.data();
  args.rows = 1;
  args.cols = 2;
  args.layout.cols = 1;
  args.e8m0 = e8m0.data();
  args.y = y.data();
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scoped(level);
    decode_blocks(args);
    EXPECT_EQ(y[0], 0x1p-127f);
    EXPECT_TRUE(std::isnan(y[1]));
  }
}

// MX casts, with a power of two (E8M0) per 32 elements of a row or a column, against the formula of block_cast.h in
// f64, on every level.

int e8m0_by_definition(double amax, float max) {
  const float v = static_cast<float>(amax * static_cast<double>(1.0f / max));
  if (std::isnan(v)) return 0xFF;
  for (int e = 0; e < 0xFE; ++e) {
    if (std::ldexp(1.0, e - 127) >= static_cast<double>(v)) return e;
  }
  return 0xFE;
}

TEST(MxCast, FollowsTheFormulaInBothDirections) {
  unsigned seed = 40;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 320}, {64, 33}, {100, 2500}, {31, 32}, {33, 31}}) {
    for (const bool columnwise : {false, true}) {
      for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
        const Matrix x(type, rows, cols, ++seed);
        const Target& target = kTargets[seed % 3];
        const Shape s = {rows, cols, columnwise ? 32 : 1, columnwise ? 1 : 32};
        const std::vector<double> values = grid(target.format, target.max);
        const std::int64_t across = tiles(cols, s.block_cols);
        std::vector<int> want;
        for (std::int64_t tile = 0; tile < tiles(rows, s.block_rows) * across; ++tile)
          want.push_back(e8m0_by_definition(amax_of(x, s, tile / across, tile % across), target.max));
        for (const SimdLevel level : levels()) {
          const ScopedSimdLevel scoped(level);
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols));
          std::vector<std::uint8_t> e8m0(static_cast<std::size_t>(tiles(rows, s.block_rows) * across));
          auto args = matrix_args<MxCastArgs>(x.data(), type, rows, cols, x.stride(), codes.data());
          args.format = target.format;
          args.max = target.max;
          args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
          args.e8m0 = e8m0.data();
          cast_mx(args);
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
              const auto tile = static_cast<std::size_t>(r / s.block_rows * across + c / s.block_cols);
              const int e = want[tile];
              ASSERT_EQ(int{e8m0[tile]}, e) << name_of(level);
              ASSERT_EQ(int{codes[static_cast<std::size_t>(r * cols + c)]},
                        code_of(x, r, c, std::ldexp(1.0, 127 - e), values))
                  << name_of(level) << " " << r << ", " << c;
            }
          }
        }
      }
    }
  }
}

TEST(MxCast, ExponentsOfHardAmaxes) {
  // From the formula alone: powers of two times max, their neighbours, subnormal quotients, the ends of the range.
  for (const float max : {448.0f, 240.0f, 57344.0f}) {
    for (int e = -149; e <= 127; ++e) {
      const float power = static_cast<float>(std::ldexp(1.0, e));
      for (const float base : {power, power * max, power * 1.5f}) {
        if (std::isinf(base)) continue;
        for (const float amax : {base, std::nextafter(base, 0.0f), std::nextafter(base, kInf)}) {
          EXPECT_EQ(int{e8m0_from_amax(amax, max)}, e8m0_by_definition(static_cast<double>(amax), max))
              << amax << " " << max;
        }
      }
    }
    EXPECT_EQ(e8m0_from_amax(0.0f, max), 0);
    EXPECT_EQ(e8m0_from_amax(kInf, max), 0xFE);
    EXPECT_EQ(e8m0_from_amax(kNaN, max), 0xFF);
  }
  for (int e = 0; e < 0xFF; ++e)
    EXPECT_EQ(static_cast<double>(e8m0_value(static_cast<std::uint8_t>(e))), std::ldexp(1.0, e - 127));
  EXPECT_TRUE(std::isnan(e8m0_value(0xFF)));
}

TEST(MxCast, InfinitiesSaturateAndNaNIsNaNAllOver) {
  std::vector<float> x(96, 1.0f);
  x[3] = -kInf;
  x[40] = kNaN;
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scoped(level);
    std::vector<std::uint8_t> codes(96), e8m0(3);
    auto args = matrix_args<MxCastArgs>(x.data(), FloatType::F32, 1, 96, 96, codes.data());
    args.e8m0 = e8m0.data();
    cast_mx(args);
    EXPECT_EQ(e8m0, (std::vector<std::uint8_t>{0xFE, 0xFF, 119}));  // 1 / 448 is between 2^-9 and 2^-8
    EXPECT_EQ(codes[3], 0xFE);                                      // -448
    EXPECT_EQ(codes[0], 0);
    for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(codes[i] & 0x7F, 0x7F);
    for (std::size_t i = 64; i < 96; ++i) EXPECT_EQ(codes[i], 0x78);  // 256
  }
}

}  // namespace
}  // namespace fp8::kernels
