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
      args.stochastic = seed;
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
        args.stochastic = seed;
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
        if ((variant & 2) != 0) args.layout = ScaleLayout::per_column();
        args.vendor = (variant & 4) != 0;
        args.stochastic = 5;
        cast_to_fp8(args);
        if (first.empty()) first = codes;
        expect_same(codes, first, std::string(name_of(level)) + " variant " + std::to_string(variant));
      }
    }
  }
}

TEST(StochasticCast, IsTheSameOnAnyLevelThreadsAndCut) {
  constexpr std::size_t kN = 200'003;  // several ranges of the pool and an odd end
  const std::vector<float> x = hard_inputs(kN);
  for (const Target& target : kTargets) {
    for (const bool flush : {false, true}) {
      std::vector<std::uint8_t> first;
      for (const SimdLevel level : levels()) {
        for (const int threads : {1, 3}) {
          const ScopedSimdLevel scoped(level);
          const Threads pool(threads);
          const float scale = 1.7f;
          std::vector<std::uint8_t> codes(kN);
          CastArgs args = args_for(x.data(), FloatType::F32, kN, target, &scale, codes.data());
          args.flush_subnormal = flush;
          args.stochastic = 77;
          cast_to_fp8(args);
          if (first.empty()) first = codes;
          expect_same(codes, first, std::string(name_of(level)) + " threads " + std::to_string(threads));
          // Rows of other lengths hold the same elements: 200003 = 109 * 1834 + 97.
          std::vector<std::uint8_t> cut(109 * 1834);
          args.rows = 1834;
          args.cols = args.row_stride = 109;
          args.codes = cut.data();
          cast_to_fp8(args);
          expect_same(cut, {first.begin(), first.begin() + 109 * 1834}, std::string("rows, ") + name_of(level));
        }
      }
    }
  }
}

TEST(StochasticCast, IsUnbiasedOverManyValues) {
  // The error of each element has mean 0 and is at most one step, so its sum over n elements stays within 5 sqrt(n)
  // steps / 2, whatever the values: here from below the smallest number to the largest.
  constexpr std::size_t kN = 400'000;
  std::mt19937 random(3);
  for (const Target& target : {kTargets[0], kTargets[2]}) {
    const std::vector<double> values = grid(target.format, target.max);
    std::vector<float> x(kN);
    for (float& v : x) {
      const std::size_t i = random() % (values.size() - 1);
      const double f = (random() % 65536) / 65536.0;
      v = static_cast<float>(values[i] + f * (values[i + 1] - values[i]));
    }
    std::vector<std::uint8_t> codes(kN);
    CastArgs args = args_for(x.data(), FloatType::F32, kN, target, nullptr, codes.data());
    args.stochastic = 9;
    cast_to_fp8(args);
    double steps = 0;
    for (std::size_t i = 0; i < kN; ++i) {
      const double a = static_cast<double>(x[i]);
      const auto above = std::upper_bound(values.begin(), values.end() - 1, a);
      steps += (values[codes[i]] - a) / (*above - *(above - 1));
    }
    EXPECT_LT(std::fabs(steps), 5 * 0.5 * std::sqrt(static_cast<double>(kN)));
  }
}

TEST(StochasticCast, FlushesBelowTheSmallestNumberWhenTold) {
  for (const Target& target : {kTargets[0], kTargets[2]}) {
    const float smallest = static_cast<float>(grid(target.format, target.max)[1]);
    std::vector<float> x;
    for (int i = 0; i < 3000; ++i) {
      x.insert(x.end(), {std::nextafter(smallest, 0.0f), -smallest * 0.5f, smallest, 1.5f * smallest,
                         std::numeric_limits<float>::quiet_NaN(), 1e-44f});
    }
    for (const SimdLevel level : levels()) {
      const ScopedSimdLevel scoped(level);
      std::vector<std::uint8_t> codes(x.size());
      CastArgs args = args_for(x.data(), FloatType::F32, x.size(), target, nullptr, codes.data());
      args.stochastic = 0;
      args.flush_subnormal = true;
      cast_to_fp8(args);
      std::size_t ones = 0;
      for (std::size_t i = 0; i < codes.size(); i += 6) {
        ASSERT_EQ(codes[i], 0) << name_of(level);
        ASSERT_EQ(codes[i + 1], 0x80);
        ASSERT_EQ(codes[i + 2], 1);
        ASSERT_TRUE(codes[i + 3] == 1 || codes[i + 3] == 2);
        ASSERT_EQ(codes[i + 4], 0x7F);
        ASSERT_EQ(codes[i + 5], 0);
        ones += codes[i + 3] == 1;
      }
      EXPECT_NEAR(static_cast<double>(ones), 1500.0, 5 * std::sqrt(750.0));
    }
  }
}

TEST(CastTwice, EqualsTwoCasts) {
  const std::vector<float> x = hard_inputs(150'000);
  const float s1 = 3.0f, s2 = 0.125f;
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scoped(level);
    for (const std::int64_t cols : {1499, 1500}) {  // rows of x with and without a gap
      const std::size_t n = 100 * static_cast<std::size_t>(cols);
      std::vector<std::uint8_t> a(n), b(n), want_a(n), want_b(n);
      float amax = 0, want_amax = 0;
      CastArgs first = args_for(x.data(), FloatType::F32, n, kTargets[2], &s1, a.data());
      first.rows = 100;
      first.cols = cols;
      first.row_stride = 1500;
      first.stochastic = 4;
      CastArgs second = first;
      second.stochastic = {};
      second.format = kTargets[1].format;
      second.max = kTargets[1].max;
      second.scales = &s2;
      second.codes = b.data();
      second.amax = &amax;
      cast_to_fp8_twice(first, second);
      first.codes = want_a.data();
      first.amax = &want_amax;
      second.codes = want_b.data();
      second.amax = nullptr;
      cast_to_fp8(first);
      cast_to_fp8(second);
      expect_same(a, want_a, name_of(level));
      expect_same(b, want_b, name_of(level));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(amax), std::bit_cast<std::uint32_t>(want_amax));
    }
  }
  CastArgs one = args_for(x.data(), FloatType::F32, 4, kTargets[0], nullptr, nullptr);
  std::vector<std::uint8_t> codes(8);
  one.codes = codes.data();
  CastArgs other = one;
  other.cols = 3;
  EXPECT_THROW(cast_to_fp8_twice(one, other), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
