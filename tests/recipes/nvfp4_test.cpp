// SPDX-License-Identifier: Apache-2.0
// NVFP4 against a search for the nearest value in f64 and the published steps of its scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "fp8/recipes/block_scaling.h"

namespace fp8::recipes {
namespace {

const float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// s ee m: (1 + m / 2) * 2^(e - 1), m / 2 for e = 0.
double e2m1_value(int code) {
  const int e = (code >> 1) & 3, m = code & 1;
  const double magnitude = e == 0 ? m / 2.0 : (1 + m / 2.0) * std::pow(2.0, e - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// The same for E4M3, code 0..0x7E.
double e4m3_value(int code) {
  const int e = code >> 3, m = code & 7;
  return e == 0 ? m / 8.0 * std::pow(2.0, -6) : (1 + m / 8.0) * std::pow(2.0, e - 7);
}

// The nearest of values 0..last (ascending), ties to the even code.
template <class Value>
int nearest(double x, int last, Value value) {
  int best = 0;
  for (int code = 1; code <= last; ++code) {
    const double here = std::fabs(value(code) - x), there = std::fabs(value(best) - x);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best;
}

int nearest_e2m1(float x) { return nearest(std::fabs(x), 7, e2m1_value) | (std::signbit(x) ? 8 : 0); }

TEST(E2M1, ValuesAndRounding) {
  for (int code = 0; code < 16; ++code) EXPECT_EQ(e2m1_to_float(static_cast<std::uint8_t>(code)), e2m1_value(code));
  for (int step = -8000; step <= 8000; ++step) {  // every tie is among them
    const float x = static_cast<float>(step) / 1000.0f, tie = static_cast<float>(step) / 32.0f;
    ASSERT_EQ(e2m1_from_float(x), nearest_e2m1(x)) << x;
    ASSERT_EQ(e2m1_from_float(tie), nearest_e2m1(tie)) << tie;
    ASSERT_EQ(e2m1_from_float(std::nextafter(tie, kInf)), nearest_e2m1(std::nextafter(tie, kInf))) << tie;
  }
  EXPECT_EQ(e2m1_from_float(kInf), 7);
  EXPECT_EQ(e2m1_from_float(-kInf), 15);
  EXPECT_EQ(e2m1_from_float(-0.0f), 8);
  EXPECT_EQ(e2m1_from_float(kNaN), 0);
}

std::vector<float> random_matrix(std::int64_t rows, std::int64_t cols, float size) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (float& value : x) value = normal(random) * size * std::exp2(normal(random) * 3.0f);
  return x;
}

// Every element by itself, from its block's amax: f32 steps as published, nearest values by search.
void expect_published_rule(std::int64_t rows, std::int64_t cols, bool square, float size) {
  const std::vector<float> x = random_matrix(rows, cols, size);
  const NVFP4Matrix q = nvfp4_quantize(x.data(), rows, cols, square);
  const std::vector<float> y = nvfp4_dequantize(q);
  float amax = 0.0f;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  const auto f32 = [](double value) { return static_cast<float>(value); };
  const float s_enc = f32(448.0 * 6.0 / amax), inverse = f32(1.0 / s_enc);
  ASSERT_EQ(q.scale_inv, inverse);
  const std::int64_t height = square ? 16 : 1, across = (cols + 15) / 16;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      float block = 0.0f;
      for (std::int64_t i = r / height * height; i < std::min(rows, r / height * height + height); ++i) {
        for (std::int64_t j = c / 16 * 16; j < std::min(cols, c / 16 * 16 + 16); ++j) {
          block = std::max(block, std::fabs(x[i * cols + j]));
        }
      }
      const float wanted = f32(static_cast<double>(f32(block / 6.0)) * s_enc);
      const int scale = nearest(wanted, 0x7E, e4m3_value);
      ASSERT_EQ(q.block_scales[r / height * across + c / 16], scale) << r << " " << c;
      const float m = f32(e4m3_value(scale) * inverse);
      const float scaled = f32(static_cast<double>(x[r * cols + c]) * f32(1.0 / m));
      const std::uint8_t pair = q.codes[r * ((cols + 1) / 2) + c / 2];
      ASSERT_EQ(c % 2 == 0 ? pair & 15 : pair >> 4, nearest_e2m1(scaled)) << r << " " << c;
      ASSERT_EQ(y[r * cols + c], f32(e2m1_value(nearest_e2m1(scaled)) * m));
    }
  }
}

TEST(NVFP4, EqualsThePublishedRule) {
  expect_published_rule(5, 64, false, 1.0f);
  expect_published_rule(33, 47, false, 1e-6f);  // partial blocks, an odd nibble
  expect_published_rule(48, 32, true, 1.0f);
  expect_published_rule(37, 21, true, 1e9f);
  expect_published_rule(1, 1, false, 3.0f);
}

TEST(NVFP4, ValuesOfTheFormatSurvive) {
  std::vector<float> x;
  for (int code = 0; code < 16; ++code) x.push_back(static_cast<float>(e2m1_value(code)));
  EXPECT_EQ(nvfp4_dequantize(nvfp4_quantize(x.data(), 1, 16)), x);
  const NVFP4Matrix q = nvfp4_quantize(x.data(), 1, 16);
  EXPECT_EQ(q.codes[0], 0x10);  // 0, 0.5: the first in the low nibble
  EXPECT_EQ(q.codes[7], 0xFE);  // -4, -6
  EXPECT_EQ(q.block_scales[0], 0x7E);
}

TEST(NVFP4, ZerosNonFiniteAndExtremes) {
  const std::vector<float> zeros(20, 0.0f);
  EXPECT_EQ(nvfp4_dequantize(nvfp4_quantize(zeros.data(), 1, 20)), zeros);
  EXPECT_EQ(nvfp4_quantize(zeros.data(), 1, 20).scale_inv, 1.0f);
  std::vector<float> x(48, 1.0f);
  x[3] = kInf, x[20] = kNaN;
  const std::vector<float> y = nvfp4_dequantize(nvfp4_quantize(x.data(), 1, 48));
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
  for (int i = 32; i < 48; ++i) EXPECT_NEAR(y[i], 1.0f, 1e-6f) << i;
  for (const float size : {std::numeric_limits<float>::max(), 0x1p-110f}) {
    const std::vector<float> same(16, -size);
    for (const float value : nvfp4_dequantize(nvfp4_quantize(same.data(), 1, 16))) {
      EXPECT_TRUE(std::isfinite(value) && std::fabs(value + size) <= 0.07f * size) << size << " " << value;
    }
  }
  // From about 2^-117 down s_enc or 1 / m meets FLT_MAX, and values shrink.
  for (const float tiny : {0x1p-126f, 0x1p-140f, std::numeric_limits<float>::denorm_min()}) {
    const float value = nvfp4_dequantize(nvfp4_quantize(&tiny, 1, 1))[0];
    EXPECT_TRUE(value >= 0.0f && value <= 1.2f * tiny) << tiny << " " << value;
  }
}

TEST(NVFP4, SizesAreChecked) {
  EXPECT_TRUE(nvfp4_dequantize(nvfp4_quantize(nullptr, 0, 16)).empty());
  EXPECT_TRUE(nvfp4_dequantize(nvfp4_quantize(nullptr, 3, 0, true)).empty());
  EXPECT_THROW(nvfp4_quantize(nullptr, 1, 1), std::invalid_argument);
  EXPECT_THROW(nvfp4_quantize(nullptr, -1, 1), std::invalid_argument);
  EXPECT_THROW(nvfp4_quantize(nullptr, std::int64_t{1} << 40, std::int64_t{1} << 40), std::invalid_argument);
  const float one = 1.0f;
  NVFP4Matrix q = nvfp4_quantize(&one, 1, 1);
  q.cols = 3;
  EXPECT_THROW(nvfp4_dequantize(q), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::recipes
