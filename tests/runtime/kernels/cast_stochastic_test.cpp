// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: neighbours with the right probability, nothing lost, the same bits everywhere.
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

TEST(StochasticCast, RoundsToANeighbourWithTheRightProbability) {
  constexpr std::size_t kDraws = 200'000;
  struct Case {
    Format format;
    float x;
  };
  for (const Case& c : {Case{Format::E4M3, 18.5f},
                        {Format::E4M3, -0.0007f},
                        {Format::E4M3, 0.0101f},
                        {Format::E4M3, 300.0f},
                        {Format::E5M2, 18.5f},
                        {Format::E5M2, 1.7e-5f},
                        {Format::E5M2, -40000.0f}}) {
    const Target target = {c.format, fp8_max(c.format, Dialect::ocp)};
    const std::vector<double> values = grid(c.format, target.max);
    const double a = std::fabs(static_cast<double>(c.x));
    const std::size_t above =
        static_cast<std::size_t>(std::upper_bound(values.begin(), values.end(), a) - values.begin());
    const double p = (a - values[above - 1]) / (values[above] - values[above - 1]);
    for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xdeadbeefcafe}}) {
      const std::vector<float> x(kDraws, c.x);
      std::vector<std::uint8_t> codes(kDraws);
      CastArgs args = args_for(x.data(), FloatType::F32, kDraws, target, nullptr, codes.data());
      args.stochastic = true;
      args.seed = seed;
      cast_to_fp8(args);
      std::size_t up = 0;
      for (std::uint8_t code : codes) {
        ASSERT_TRUE((code & 0x7Fu) == above || (code & 0x7Fu) + 1u == above);
        ASSERT_EQ((code & 0x80) != 0, c.x < 0);
        up += (code & 0x7Fu) == above;
      }
      const double sigma = std::sqrt(p * (1 - p) / kDraws);
      EXPECT_NEAR(static_cast<double>(up) / kDraws, p, 5 * sigma) << c.x << " seed " << seed;
    }
  }
}

TEST(StochasticCast, KeepsGridValuesNaNAndSaturates) {
  for (Target target : kTargets) {
    std::vector<float> x;
    std::vector<std::uint8_t> want;
    const std::vector<double> values = grid(target.format, target.max);
    for (std::size_t i = 0; i < values.size(); ++i) {
      x.insert(x.end(), {static_cast<float>(values[i]), -static_cast<float>(values[i])});
      want.insert(want.end(), {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i | 0x80)});
    }
    const std::uint8_t top = static_cast<std::uint8_t>(values.size() - 1);
    x.insert(x.end(), {1e30f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()});
    want.insert(want.end(), {top, static_cast<std::uint8_t>(top | 0x80), 0x7F});
    for (SimdLevel level : levels()) {
      ScopedSimdLevel scoped(level);
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<std::uint8_t> codes(x.size());
        CastArgs args = args_for(x.data(), FloatType::F32, x.size(), target, nullptr, codes.data());
        args.stochastic = true;
        args.seed = seed;
        cast_to_fp8(args);
        expect_same(codes, want, name_of(level));
      }
    }
  }
}

TEST(StochasticCast, EveryTypeAndLayoutIsTheSameOnEveryLevel) {
  for (FloatType type : {FloatType::BF16, FloatType::F16}) {
    const std::vector<std::uint16_t> x = random_halves(777, type, 11);
    std::vector<float> scales(777);
    for (std::size_t i = 0; i < 777; ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
    for (int variant = 0; variant < 8; ++variant) {
      std::vector<std::uint8_t> first;
      for (SimdLevel level : levels()) {
        ScopedSimdLevel scoped(level);
        std::vector<std::uint8_t> codes(777);
        CastArgs args = args_for(x.data(), type, 777, kTargets[variant & 1 ? 2 : 0], scales.data(), codes.data());
        args.scale_col_stride = variant & 2 ? 1 : 0;
        args.round_product = (variant & 4) != 0;
        args.stochastic = true;
        args.seed = 5;
        cast_to_fp8(args);
        if (first.empty()) first = codes;
        expect_same(codes, first, std::string(name_of(level)) + " variant " + std::to_string(variant));
      }
    }
  }
}

}  // namespace
}  // namespace fp8::kernels
