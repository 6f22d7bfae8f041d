// SPDX-License-Identifier: Apache-2.0
// The search for the least error, against the definition written a second time: every candidate, fp8 values from the
// format's definition, nearest by distance, sums in f64.

#include <algorithm>
#include <cmath>
#include <random>

#include "fp8/recipes/inc_scale.h"
#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

// All magnitudes of a format in order of their codes: subnormals, then 2^e * (1 + m / M).
std::vector<double> magnitudes(Format format, double max) {
  const int mantissas = format == Format::E4M3 ? 8 : 4, smallest = format == Format::E4M3 ? -6 : -14;
  std::vector<double> values;
  for (int m = 0; m < mantissas; ++m) values.push_back(std::ldexp(m, smallest) / mantissas);
  for (int e = smallest; values.back() < max; ++e)
    for (int m = 0; m < mantissas && values.back() < max; ++m)
      values.push_back(std::ldexp(1.0 + static_cast<double>(m) / mantissas, e));
  return values;
}

// The nearest of them, ties to the even code; beyond the largest: the largest.
double to_fp8(double y, const std::vector<double>& values) {
  const double x = std::abs(y);
  if (x >= values.back()) return std::copysign(values.back(), y);
  const auto above = static_cast<std::size_t>(std::upper_bound(values.begin(), values.end(), x) - values.begin());
  const double low = x - values[above - 1], high = values[above] - x;
  const bool up = high < low || (high == low && above % 2 == 0);
  return std::copysign(values[up ? above : above - 1], y);
}

struct Definition {
  IncTarget target;
  std::vector<double> values = magnitudes(target.format, fp8_max(target.format, target.dialect));
  float hp(double x) const { return round_to(static_cast<float>(x), target.hp); }

  float residual(float w, float s) const {
    return hp(static_cast<double>(w) - hp(to_fp8(hp(static_cast<double>(w) / s), values) * s));
  }
  float of_tensor(const std::vector<float>& w, const std::vector<float>& candidates) const {
    float best = -1.0f, least = INFINITY;
    for (const float s : candidates) {
      double sum = 0.0;
      for (const float x : w) sum += std::pow(static_cast<double>(residual(hp(x), s)), 2);
      if (hp(std::sqrt(sum)) <= least) least = hp(std::sqrt(sum)), best = s;
    }
    return best;
  }
  float of_channel(const float* w, std::int64_t n, float reference, const std::vector<float>& multipliers) const {
    float best = -1.0f, least = INFINITY;
    for (const float m : multipliers) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < n; ++i)
        sum += hp(std::pow(static_cast<double>(residual(hp(w[i]), reference * m)), 2));
      if (hp(sum) < least) least = hp(sum), best = m;
    }
    return best * reference;
  }
};

std::vector<float> weights(std::int64_t n, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> heavy(3.0f);
  std::vector<float> w(static_cast<std::size_t>(n));
  for (float& x : w) x = size * heavy(random);
  return w;
}

std::vector<float> powers(int low, int high) {
  std::vector<float> result;
  for (int e = low; e <= high; ++e) result.push_back(std::ldexp(1.0f, e));
  return result;
}

const Dialect kDialects[] = {Dialect::gaudi2, Dialect::gaudi3};
const FloatType kTypes[] = {FloatType::BF16, FloatType::F16, FloatType::F32};

TEST(OptScale, PerTensorIsTheCandidateOfLeastErrorTheLastOfEquals) {
  for (const float size : {0.003f, 0.02f, 1.0f, 40.0f}) {
    const auto w = weights(3 * 1500, size, 3);
    for (const Dialect dialect : kDialects)
      for (const FloatType hp : kTypes) {
        const Definition definition{{dialect, Format::E4M3, hp}};
        const auto hw = opt_scale_inv(w.data(), 3, 1500, scale_method_from_name("maxabs_hw_opt_weight").weight,
                                      definition.target, "w");
        const auto pow2 = opt_scale_inv(w.data(), 3, 1500, scale_method_from_name("maxabs_pow2_opt_weight").weight,
                                        definition.target, "w");
        ASSERT_EQ(hw.size(), 1);
        const std::vector<float> set =
            dialect == Dialect::gaudi2 ? std::vector<float>{16, 1, 1.0f / 16, 1.0f / 256} : [] {
              auto all = powers(-55, 7);
              std::reverse(all.begin(), all.end());
              return all;
            }();
        EXPECT_EQ(hw[0], definition.of_tensor(w, set)) << size << name_of(dialect) << name_of(hp);
        EXPECT_EQ(pow2[0], definition.of_tensor(w, powers(-10, 9))) << size << name_of(dialect) << name_of(hp);
      }
  }
}

TEST(OptScale, PerChannelIsTheMultipleOfTheReferenceTheFirstOfEquals) {
  constexpr std::int64_t kRows = 6, kCols = 5000;
  std::vector<float> w;
  for (int r = 0; r < kRows; ++r) {
    const auto row = weights(kCols, std::pow(10.0f, static_cast<float>(r - 3)), 11 + static_cast<unsigned>(r));
    w.insert(w.end(), row.begin(), row.end());
  }
  const ScaleMethod method = scale_method_from_name("act_maxabs_hw_weights_pcs_opt_pow2").weight;
  for (const Format format : {Format::E4M3, Format::E5M2})
    for (const Dialect dialect : kDialects)
      for (const FloatType hp : {FloatType::BF16, FloatType::F32}) {
        const Definition definition{{dialect, format, hp}};
        const auto found = opt_scale_inv(w.data(), kRows, kCols, method, definition.target, "w");
        ASSERT_EQ(found.size(), kRows);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const float* row = w.data() + r * kCols;
          float amax = 0.0f;
          for (std::int64_t i = 0; i < kCols; ++i) amax = std::max(amax, std::abs(row[i]));
          const ScaleMethod maxabs{Granularity::channel, ScaleValue::MAXABS, Rounding::POW2, 0.5f};
          const float reference = inc_scale_inv(amax, maxabs, definition.target, "w");
          EXPECT_EQ(found[r], definition.of_channel(row, kCols, reference, powers(-3, 4)))
              << name_of(dialect) << name_of(hp) << r;
        }
      }
}

TEST(OptScale, TiesGoToTheLastPerTensorAndToTheFirstPerChannel) {
  const std::vector<float> w{1.0f, -0.5f, 0.25f, 0.0f};  // exact under every power of two near 1
  ScaleMethod method = scale_method_from_name("maxabs_pow2_opt_weight").weight;
  method.candidates = {0.5f, 1.0f, 2.0f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 2.0f);
  method.candidates = {2.0f, 1.0f, 0.5f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 0.5f);
  method = scale_method_from_name("act_maxabs_pow2_weights_pcs_opt_pow2").weight;
  const float reference = 0x1p-7f;                                              // 1 / 224, up to a power of two
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], reference / 2);  // the multiples 1/8, 1/4 saturate 1.0
  method.candidates = {4.0f, 2.0f, 1.0f};
  EXPECT_EQ(opt_scale_inv(w.data(), 1, 4, method, {}, "w")[0], 4 * reference);
}

TEST(OptScale, ScalesOfZerosAreUsable) {
  const std::vector<float> w(64, 0.0f);
  for (const auto& method : scale_methods()) {
    if (method.weight.value != ScaleValue::OPT) continue;
    for (const FloatType hp : kTypes) {
      const IncTarget target{Dialect::gaudi3, Format::E4M3, hp};
      const auto found = opt_scale_inv(w.data(), 4, 16, method.weight, target, "w");
      EXPECT_EQ(found.size(), method.weight.granularity == Granularity::channel ? 4 : 1);
      for (const float s : found)
        EXPECT_TRUE(s > 0.0f && std::isfinite(inc_scale(s, hp)) && inc_scale(s, hp) > 0.0f) << method.name << s;
    }
  }
  EXPECT_EQ(opt_scale_inv(nullptr, 0, 16, scale_method_from_name("act_maxabs_hw_weights_pcs_opt_pow2").weight, {}, "w")
                .size(),
            0);
}

TEST(OptScale, ErrorIsNotLargerThanThatOfMaxabs) {
  const auto w = weights(4096, 0.02f, 5);
  const IncTarget target{Dialect::gaudi2, Format::E4M3, FloatType::BF16};
  const Definition definition{target};
  const auto error = [&](float s) {
    double sum = 0.0;
    for (const float x : w) sum += std::pow(static_cast<double>(definition.residual(definition.hp(x), s)), 2);
    return sum;
  };
  float amax = 0.0f;
  for (const float x : w) amax = std::max(amax, std::abs(x));
  const float maxabs = inc_scale_inv(amax, scale_method_from_name("maxabs_pow2").weight, target, "w");
  const float best =
      opt_scale_inv(w.data(), 1, 4096, scale_method_from_name("maxabs_pow2_opt_weight").weight, target, "w")[0];
  EXPECT_LE(error(best), error(maxabs) * 1.01);  // within the rounding of errors to bf16
}

TEST(OptScale, ErrorsNameTheWeight) {
  const auto message = [](const std::vector<float>& w, const ScaleMethod& method, FloatType hp = FloatType::BF16) {
    const IncTarget target{Dialect::gaudi3, Format::E4M3, hp};
    return test::error_of<std::invalid_argument>(
        [&] { opt_scale_inv(w.data(), 1, static_cast<std::int64_t>(w.size()), method, target, "fc1.weight"); });
  };
  ScaleMethod method = scale_method_from_name("maxabs_pow2_opt_weight").weight;
  EXPECT_THAT(message({1.0f, std::nanf("")}, method), HasSubstr("fc1.weight: the weight has NaN or infinite values"));
  EXPECT_THAT(message({INFINITY}, method), HasSubstr("fc1.weight: the weight has NaN or infinite values"));
  EXPECT_THAT(message({70000.0f}, method, FloatType::F16),
              HasSubstr("fc1.weight: the weight has values beyond what f16"));
  EXPECT_THAT(message({1.0f}, scale_method_from_name("maxabs_pow2").weight),
              HasSubstr("scale value is MAXABS, allowed: OPT"));
  for (const float bad : {0.0f, -1.0f, INFINITY, std::nanf("")}) {
    method.candidates = {1.0f, bad};
    EXPECT_THAT(message({1.0f}, method), HasSubstr("allowed: finite values > 0"));
  }
}

}  // namespace
}  // namespace fp8::recipes
