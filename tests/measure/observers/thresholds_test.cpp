// SPDX-License-Identifier: Apache-2.0
// Thresholds against computations that know nothing of histograms: sorted data, and casts in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "fp8/measure/files/histogram.h"

namespace fp8::measure {
namespace {

std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (auto& v : values) v = distribution(generator);
  return values;
}

Histogram histogram_of(const std::vector<float>& values, int bins = 2048) {
  Histogram h(bins);
  h.add(values.data(), kernels::FloatType::F32, static_cast<std::int64_t>(values.size()));
  return h;
}

/// |v| rounded to E4M3 (bias 7, 3 bits) or E5M2 (bias 15, 2 bits) in double precision, saturating.
double rounded(double v, double max, kernels::Format format) {
  const int bits = format == kernels::Format::E4M3 ? 3 : 2, lowest = format == kernels::Format::E4M3 ? -6 : -14;
  int e = 0;
  std::frexp(v, &e);
  const double step = std::ldexp(1.0, std::max(e - 1, lowest) - bits);
  return std::min(std::nearbyint(v / step) * step, max);
}

/// The mean squared error of casting the values themselves with a threshold.
double cast_error(const std::vector<float>& values, double threshold, const Fp8Target& target) {
  const double scale_inv = threshold / target.max;
  double sum = 0;
  for (float v : values) {
    const double m = std::fabs(v), d = m - rounded(m / scale_inv, target.max, target.format) * scale_inv;
    sum += d * d;
  }
  return sum / static_cast<double>(values.size());
}

TEST(Thresholds, PercentileIsTheQuantileToOneBin) {
  for (const auto& values : {normal(20000, 1), std::vector<float>{3.0f}, std::vector<float>(50, -2.0f)}) {
    auto sorted = values;
    for (auto& v : sorted) v = std::fabs(v);
    std::sort(sorted.begin(), sorted.end());
    const auto h = histogram_of(values);
    for (const double percent : {0.01, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
      const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size()) - 1e-9));
      const double quantile = sorted[std::max<std::size_t>(rank, 1) - 1];
      const double t = percentile_threshold(h, percent);
      EXPECT_GE(t, quantile) << percent;
      EXPECT_LE(t, quantile + h.range() / h.bins()) << percent;
      EXPECT_LE(t, sorted.back()) << percent;
    }
    EXPECT_EQ(percentile_threshold(h, 100), sorted.back());
  }
}

TEST(Thresholds, PercentileCutsAnOutlierOff) {
  auto values = normal(100000, 2);
  values[77] = 1000.0f;
  EXPECT_LT(percentile_threshold(histogram_of(values), 99.99), 6.0f);
  EXPECT_EQ(percentile_threshold(histogram_of(values), 100), 1000.0f);
}

TEST(Thresholds, PercentileCountsZerosButNeverGivesZero) {
  std::vector<float> values(1000, 0.0f);
  values[1] = 2.0f, values[2] = 100.0f;
  EXPECT_EQ(percentile_threshold(histogram_of(values), 99.9), histogram_of(values).edge(33));  // 2 lies in bin 32
  EXPECT_EQ(percentile_threshold(histogram_of(values), 50), histogram_of(values).edge(33));
}

TEST(Thresholds, PercentilesOutOfRangeAreRefused) {
  for (const double percent : {0.0, -1.0, 100.5, std::nan("")}) {
    EXPECT_THROW(percentile_threshold(Histogram(), percent), std::invalid_argument);
  }
}

TEST(Thresholds, MseIsTheBestOfAllThresholdsForTheValues) {
  std::map<std::string, std::vector<float>> data = {{"normal", normal(20000, 3)}};
  auto outliers = normal(20000, 4);
  for (int i = 0; i < 4; ++i) outliers[static_cast<std::size_t>(i)] *= 8.0f;
  data["outliers"] = outliers;
  data["uniform"] = std::vector<float>(4096);
  for (std::size_t i = 0; i < 4096; ++i) data["uniform"][i] = static_cast<float>(i) / 4096.0f;
  for (const auto& [name, values] : data) {
    for (const Fp8Target target :
         {Fp8Target{}, Fp8Target{kernels::Format::E4M3, 240.0f}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const auto h = histogram_of(values);
      double least = cast_error(values, h.amax(), target);
      for (int k = 1; k <= 1024; ++k) least = std::min(least, cast_error(values, h.amax() * (k / 1024.0), target));
      const double ours = cast_error(values, mse_threshold(h, target), target);
      EXPECT_LE(ours, least * 1.02) << name << ", max " << target.max;
      EXPECT_LE(ours, cast_error(values, h.amax(), target) * 1.002) << name;  // the bins' share
    }
  }
}

TEST(Thresholds, MseClipsWhereThatPaysAndNotOtherwise) {
  // 2^20 values of +-1 and a single 1.2: 1 is no code of 1.2's scale, a threshold of 1 makes all but one exact.
  std::vector<float> values(1 << 20, 1.0f);
  values[9] = 1.2f;
  const float t = mse_threshold(histogram_of(values), {});
  EXPECT_LT(cast_error(values, t, {}), cast_error(values, 1.2, {}) / 5);
  // One value far above all: clipping it costs more than everything else together.
  auto far = normal(1000, 5);
  far[3] = 1e6f;
  EXPECT_GT(mse_threshold(histogram_of(far), {}), 9.5e5f);
}

/// KL(P || Q) as in the header, from the counts, bin by bin.
double divergence(const Histogram& h, int below, const Fp8Target& target) {
  const double threshold = std::min<double>(h.edge(below), h.amax());
  std::vector<double> p(static_cast<std::size_t>(below)), q(p);
  std::map<double, std::pair<double, int>> codes;  // value of the code -> counts of its bins, bins that hold any
  const auto code = [&](int i) {
    return rounded((h.edge(i) + h.edge(i + 1)) / 2 / threshold * target.max, target.max, target.format);
  };
  double all = 0, inside = 0;
  for (int i = 0; i < h.bins(); ++i) {
    const auto count = static_cast<double>(h.counts()[static_cast<std::size_t>(i)]);
    all += count;
    p[static_cast<std::size_t>(std::min(i, below - 1))] += count;
    if (i >= below) continue;
    inside += count;
    auto& group = codes[code(i)];
    group.first += count;
    group.second += count > 0;
  }
  double kl = 0;
  for (int i = 0; i < below; ++i) {
    const auto [sum, held] = codes[code(i)];
    const double share = p[static_cast<std::size_t>(i)] / all;
    if (share == 0) continue;
    if (h.counts()[static_cast<std::size_t>(i)] == 0) return INFINITY;
    kl += share * std::log(share / (sum / held / inside));
  }
  return kl;
}

TEST(Thresholds, KlIsTheLeastDivergence) {
  for (const std::uint32_t seed : {6u, 7u}) {
    auto values = normal(50000, seed);
    for (int i = 0; i < 3; ++i) values[static_cast<std::size_t>(i)] *= 6.0f;
    const auto h = histogram_of(values);
    for (const Fp8Target target : {Fp8Target{}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const float t = kl_threshold(h, target);
      int used = h.bins();
      while (h.edge(used - 1) > h.amax()) --used;
      double least = INFINITY;
      float best = 0;
      for (int k = 256; k >= 1; --k) {
        const int below = used * k / 256;
        const double kl = divergence(h, below, target);
        if (kl < least * (1 - 1e-9)) least = kl, best = std::min(static_cast<float>(h.edge(below)), h.amax());
      }
      EXPECT_EQ(t, best);
    }
  }
}

TEST(Thresholds, AnAffordableOneCostsNoMoreThanTheMaximum) {
  auto tail = normal(100000, 8), spike = tail, step = std::vector<float>(1 << 20, 1.0f);
  for (int i = 0; i < 20; ++i) tail[static_cast<std::size_t>(i)] *= 10.0f;
  spike[77] = 300.0f;
  step[9] = 1.2f;
  for (const auto& values : {normal(20000, 9), tail, spike, step}) {
    const auto h = histogram_of(values);
    for (const Fp8Target target :
         {Fp8Target{}, Fp8Target{kernels::Format::E4M3, 240.0f}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const double whole = cast_error(values, h.amax(), target);
      for (const double percent : {1.0, 50.0, 99.0, 99.99}) {
        const float wanted = percentile_threshold(h, percent), t = affordable_threshold(h, wanted, target);
        EXPECT_GE(t, wanted);
        EXPECT_LE(t, h.amax());
        EXPECT_LE(cast_error(values, t, target), whole * 1.002)
            << percent << ", max " << target.max;  // the bins' share
        double clipped = 0;                        // the share of the values above it
        for (const float v : values) {
          if (std::fabs(v) > wanted)
            clipped += std::pow(std::fabs(v) - wanted, 2.0) / static_cast<double>(values.size());
        }
        if (cast_error(values, wanted, target) + 3 * clipped < whole * 0.99) {
          EXPECT_EQ(t, wanted) << "it costs nothing";
        }
      }
      EXPECT_EQ(affordable_threshold(h, h.amax(), target), h.amax());
    }
  }
  EXPECT_GT(affordable_threshold(histogram_of(spike), 5.0f, {}), 290.0f) << "a single value far above all";
  EXPECT_EQ(affordable_threshold(histogram_of(step), 1.0f, {}), 1.0f) << "clipping pays";
  EXPECT_EQ(affordable_threshold(Histogram(), 0.0f, {}), 0.0f);
}

TEST(Thresholds, AdversarialDataGivesAThresholdWithinTheRange) {
  std::vector<std::vector<float>> data = {
      {0.0f}, {1e-45f}, {3.4e38f}, {1e-45f, 3.4e38f}, std::vector<float>(7, -5.0f), std::vector<float>(1000, 0.0f), {}};
  data.push_back(std::vector<float>(100000, 1e-3f));
  data.back()[5] = 1e30f;
  for (const auto& values : data) {
    const auto h = histogram_of(values);
    for (const float t : {percentile_threshold(h, 99.99), mse_threshold(h, {}), kl_threshold(h, {})}) {
      EXPECT_TRUE(std::isfinite(t));
      EXPECT_LE(t, h.amax());
      EXPECT_EQ(t > 0, h.amax() > 0);
    }
  }
}

}  // namespace
}  // namespace fp8::measure
