// SPDX-License-Identifier: Apache-2.0
// Rescaled codes against exact rational arithmetic on integers: a code is n * 2^-9, n an integer.
#include "fp8/quant/checkpoint/requantize.h"

#include <random>

#include "support/enum_names.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using recipes::Dialect;
using recipes::Format;

/// |value| of a code in units of 2^-9; -1 for NaN.
std::int64_t units(int code) {
  const int e = (code >> 3) & 15, m = code & 7;
  if (e == 15 && m == 7) return -1;
  return e == 0 ? m : static_cast<std::int64_t>(8 + m) << (e - 1);
}

/// The code nearest to units * num / den, ties to the even code, at most `top`: by search over all codes.
int nearest(std::int64_t n, std::int64_t num, std::int64_t den, int top) {
  int best = 0;
  std::int64_t best_distance = n * num;  // |0 - n * num / den| * den
  for (int code = 1; code <= top; ++code) {
    const std::int64_t distance = std::abs(units(code) * den - n * num);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

void expect_codes(const Rescaling& r, std::int64_t num, std::int64_t den, int top) {
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code & 0x7F;
    const int expected = units(magnitude) < 0 ? code : nearest(units(magnitude), num, den, top) | (code & 0x80);
    EXPECT_EQ(r.code[static_cast<std::size_t>(code)], expected) << "code " << code;
  }
}

TEST(CodeConvert, RescalesHaveNames) { test::check_names<Rescale>(); }

TEST(CodeConvert, RescaledCodesAreTheNearestOnes) {
  constexpr int k240 = 0x77, k448 = 0x7E;
  expect_codes(rescaling(Format::E4M3, Dialect::ocp, Dialect::gaudi2, std::nullopt), 240, 448, k240);
  expect_codes(rescaling(Format::E4M3, Dialect::gaudi3, Dialect::gaudi2, Rescale::range), 240, 448, k240);
  expect_codes(rescaling(Format::E4M3, Dialect::ocp, Dialect::gaudi2, Rescale::two), 1, 2, k240);
  expect_codes(rescaling(Format::E4M3, Dialect::gaudi2, Dialect::ocp, Rescale::range), 448, 240, k448);
}

TEST(CodeConvert, NothingChangesWhereEveryCodeFits) {
  EXPECT_TRUE(rescaling(Format::E4M3, Dialect::gaudi2, Dialect::ocp, std::nullopt).identity());
  EXPECT_TRUE(rescaling(Format::E4M3, Dialect::gaudi3, Dialect::ocp, Rescale::range).identity());
  EXPECT_TRUE(rescaling(Format::E5M2, Dialect::ocp, Dialect::gaudi2, std::nullopt).identity());
  EXPECT_EQ(rescaling(Format::E4M3, Dialect::gaudi2, Dialect::gaudi3, std::nullopt).scale_inv(0.3f, "x"), 0.3f);
}

TEST(CodeConvert, ByTwoOnlyOddCodesBelowTwoToMinusFiveChangeTheirValue) {
  const auto r = rescaling(Format::E4M3, Dialect::ocp, Dialect::gaudi2, Rescale::two);
  EXPECT_EQ(r.scale_inv(0.375f, "x"), 0.75f);
  for (int code = 0; code < 0x7F; ++code) {
    const bool same = units(r.code[static_cast<std::size_t>(code)]) * 2 == units(code);
    EXPECT_EQ(same, units(code) >= 16 || units(code) % 2 == 0) << code;
  }
}

TEST(CodeConvert, ScalesTakeTwoRoundingsAsTheVendorsScripts) {
  const auto r = rescaling(Format::E4M3, Dialect::ocp, Dialect::gaudi2, Rescale::range);
  std::mt19937 random(3);
  std::lognormal_distribution<float> values(-5, 4);
  for (int i = 0; i < 1000; ++i) {
    const float s = values(random);
    const float first = static_cast<float>(static_cast<double>(s) * 448.0);  // both products and quotients of f32 are
    EXPECT_EQ(r.scale_inv(s, "x"), static_cast<float>(static_cast<double>(first) / 240.0));  // rounded once through f64
  }
}

TEST(CodeConvert, RefusesWhatLeavesTheRange) {
  const auto message = [](auto&& call) { return test::error_of<std::invalid_argument>(call); };
  EXPECT_THAT(message([] { rescaling(Format::E4M3, Dialect::gaudi2, Dialect::ocp, Rescale::two); }),
              ::testing::HasSubstr("Rescale::two: twice the codes of gaudi2"));
  const auto r = rescaling(Format::E4M3, Dialect::ocp, Dialect::gaudi2, std::nullopt);
  EXPECT_EQ(message([&] { r.scale_inv(3e38f, "a.weight"); }).rfind("a.weight: scale ", 0), 0u);
}

Scheme scheme_of(Granularity weights, Block block = {}) {
  Scheme s;
  s.weights = weights;
  s.block = block;
  return s;
}

TEST(CodeConvert, RefinesWhereEveryBlockLiesInsideAnOldOne) {
  const auto tensor = scheme_of(Granularity::tensor), channel = scheme_of(Granularity::channel);
  const auto block = [](std::int64_t r, std::int64_t c) { return scheme_of(Granularity::block, {r, c}); };
  EXPECT_TRUE(refines(tensor, channel, 20, 30));
  EXPECT_TRUE(refines(tensor, block(8, 8), 20, 30));
  EXPECT_TRUE(refines(block(8, 8), block(4, 8), 20, 30));
  EXPECT_TRUE(refines(channel, block(1, 8), 20, 30));
  EXPECT_TRUE(refines(block(128, 128), tensor, 20, 30)) << "one block holds all of it";
  EXPECT_TRUE(refines(block(8, 128), channel, 20, 30)) << "rows of one block";
  EXPECT_FALSE(refines(channel, tensor, 20, 30));
  EXPECT_TRUE(refines(channel, tensor, 1, 30)) << "a single row";
  EXPECT_FALSE(refines(channel, block(8, 8), 20, 30));
  EXPECT_FALSE(refines(block(8, 8), channel, 20, 30));
  EXPECT_FALSE(refines(block(8, 8), block(5, 8), 20, 30));
  EXPECT_FALSE(refines(block(8, 8), block(16, 8), 20, 30));
}

TEST(CodeConvert, SpreadScalesGivesEveryElementItsOwn) {
  constexpr std::int64_t kRows = 21, kCols = 19;
  const auto at = [](const std::vector<float>& s, const Scheme& scheme, std::int64_t r, std::int64_t c) {
    const std::int64_t block_rows = scheme.weights == Granularity::tensor    ? kRows
                                    : scheme.weights == Granularity::channel ? 1
                                                                             : scheme.block.rows;
    const std::int64_t block_cols = scheme.weights == Granularity::block ? scheme.block.cols : kCols;
    const std::int64_t across = (kCols + block_cols - 1) / block_cols;
    return s.at(static_cast<std::size_t>(r / block_rows * across + c / block_cols));
  };
  const Scheme schemes[] = {scheme_of(Granularity::tensor),        scheme_of(Granularity::channel),
                            scheme_of(Granularity::block, {8, 4}), scheme_of(Granularity::block, {4, 4}),
                            scheme_of(Granularity::block, {1, 2}), scheme_of(Granularity::block, {64, 64})};
  int done = 0;
  for (const auto& from : schemes) {
    std::vector<float> scales(static_cast<std::size_t>(scale_grid(from, kRows, kCols).size()));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i + 1);
    for (const auto& to : schemes) {
      if (!refines(from, to, kRows, kCols)) continue;
      const auto out = spread_scales(scales, from, to, kRows, kCols);
      ASSERT_EQ(static_cast<std::int64_t>(out.size()), scale_grid(to, kRows, kCols).size());
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < kCols; ++c) ASSERT_EQ(at(out, to, r, c), at(scales, from, r, c)) << r << " " << c;
      ++done;
    }
  }
  EXPECT_GE(done, 18);
}

TEST(CodeConvert, PowersOfTwoAreThoseOfE8M0) {
  for (float yes : {1.0f, 0.25f, 0x1p-126f, 0x1p-127f, 0x1p127f}) EXPECT_TRUE(is_power_of_two(yes)) << yes;
  for (float no : {0.0f, -1.0f, 3.0f, 0x1p-128f, 1.0000001f, INFINITY, NAN}) EXPECT_FALSE(is_power_of_two(no)) << no;
}

TEST(CodeConvert, DeviationIsRelativeToTheLargestValue) {
  Deviation d;
  const float a[] = {1, -4, 0, 2}, b[] = {1, -3, 0.5f, 2};
  d.add(a, a, 4);
  EXPECT_TRUE(d.equal);
  EXPECT_EQ(d.max_error(), 0);
  d.add(a, b, 4);
  EXPECT_FALSE(d.equal);
  EXPECT_DOUBLE_EQ(d.max_error(), 0.25);
  EXPECT_DOUBLE_EQ(d.rms_error(), std::sqrt(1.25 / 42));
  const float bad[] = {1, NAN, 0, 2};
  d.add(a, bad, 4);
  EXPECT_TRUE(std::isinf(d.max_error()));
}

}  // namespace
}  // namespace fp8::quant
