// SPDX-License-Identifier: Apache-2.0
// Decodes with a scale per block against the formula in f64, for f32 and E8M0 scales, every level and kind of block.
#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

struct Shape {
  std::int64_t rows, cols, block_rows, block_cols;
};
const Shape kShapes[] = {{1, 1, 1, 1},        {7, 1000, 1, 128},  {300, 37, 128, 1},
                         {130, 333, 32, 32},  {9, 2100, 4, 3},    {3, 1700, 1, 513},
                         {70, 600, 64, 4096}, {20, 77, 9999, 10}, {40, 4111, 128, 128}};

std::int64_t tiles(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

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

}  // namespace
}  // namespace fp8::kernels
