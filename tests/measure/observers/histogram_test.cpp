// SPDX-License-Identifier: Apache-2.0
// Counts against a plain recount, whatever the order, the division into calls and the order of merging.
#include "fp8/measure/files/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::measure {
namespace {

using kernels::FloatType;

std::vector<float> normal(std::size_t n, std::uint32_t seed, float sigma = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0f, sigma);
  std::vector<float> values(n);
  for (auto& v : values) v = distribution(generator);
  return values;
}

void add(Histogram& h, const std::vector<float>& values) {
  h.add(values.data(), FloatType::F32, static_cast<std::int64_t>(values.size()));
}

Histogram histogram_of(const std::vector<float>& values, int bins = 2048) {
  Histogram h(bins);
  add(h, values);
  return h;
}

/// Each value put into its bin by comparing with the edges.
void expect_counts(const Histogram& h, const std::vector<float>& values) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(h.bins()));
  std::uint64_t zeros = 0;
  for (float v : values) {
    const double magnitude = std::fabs(static_cast<double>(v));
    if (magnitude == 0) {
      ++zeros;
      continue;
    }
    int low = 0, high = h.bins();  // edge(low) <= magnitude < edge(high)
    while (high - low > 1) (h.edge((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
    ++counts[static_cast<std::size_t>(low)];
  }
  EXPECT_EQ(h.counts(), counts);
  EXPECT_EQ(h.zeros(), zeros);
  EXPECT_EQ(h.total(), values.size());
}

TEST(Histogram, CountsEveryValueInItsBin) {
  for (const int bins : {16, 1000, 2048, 65536}) {
    auto values = normal(100000, 1);
    values.insert(values.end(), {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 4.0f, 8.0f, 1e-45f});
    const auto h = histogram_of(values, bins);
    EXPECT_EQ(h.amax(), 8.0f);
    EXPECT_EQ(h.range(), 16.0);
    expect_counts(h, values);
  }
}

TEST(Histogram, TakesEveryFloatingType) {
  std::vector<std::uint16_t> bf16, f16;
  std::vector<float> from_bf16, from_f16;
  for (float v : normal(5000, 2)) {
    bf16.push_back(kernels::f32_to_bf16(v)), from_bf16.push_back(kernels::bf16_to_f32(bf16.back()));
    f16.push_back(kernels::f32_to_f16(v)), from_f16.push_back(kernels::f16_to_f32(f16.back()));
  }
  Histogram a, b;
  a.add(bf16.data(), FloatType::BF16, 5000);
  b.add(f16.data(), FloatType::F16, 5000);
  EXPECT_EQ(a, histogram_of(from_bf16));
  EXPECT_EQ(b, histogram_of(from_f16));
}

TEST(Histogram, DoesNotDependOnOrderNorOnCalls) {
  auto values = normal(30000, 3);
  values[17] = 1e6f, values[20000] = -3e37f, values[5] = 1e-40f;
  const auto whole = histogram_of(values);
  expect_counts(whole, values);
  std::mt19937 generator(4);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(values.begin(), values.end(), generator);
    Histogram h;
    for (std::size_t begin = 0; begin < values.size();) {
      const std::size_t end = std::min(values.size(), begin + generator() % 7000);
      add(h, {values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end)});
      begin = end;
    }
    EXPECT_EQ(h, whole);
  }
}

TEST(Histogram, MergingInAnyOrderIsOneHistogramOfAll) {
  const std::vector<std::vector<float>> parts = {
      normal(1000, 5), normal(2000, 6, 1e-5f), {0, 0}, {}, normal(500, 7, 1e6f)};
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    Histogram h;
    for (int i : order) h.merge(histogram_of(parts[static_cast<std::size_t>(i)]));
    ASSERT_EQ(h, histogram_of(all));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_THROW(Histogram(16).merge(Histogram(32)), std::invalid_argument);
}

TEST(Histogram, NothingAndZerosHaveNoRange) {
  Histogram h;
  add(h, {});
  EXPECT_EQ(h, Histogram());
  add(h, {0.0f, -0.0f});
  EXPECT_EQ(h.range(), 0.0);
  EXPECT_EQ(h.amax(), 0.0f);
  EXPECT_EQ(h.zeros(), 2u);
}

TEST(Histogram, RefusesWhatItCannotCount) {
  EXPECT_THROW(Histogram(15), std::invalid_argument);
  EXPECT_THROW(Histogram(65537), std::invalid_argument);
  EXPECT_THROW(histogram_of({1.0f, INFINITY}), std::invalid_argument);
  EXPECT_THROW(histogram_of({1.0f, NAN}), std::invalid_argument);
}

TEST(Histogram, JsonRestoresEveryBit) {
  for (const auto& values :
       {normal(3000, 8), std::vector<float>{0.0f}, std::vector<float>{}, std::vector<float>{1e-45f, 3.4e38f}}) {
    const auto h = histogram_of(values);
    const auto text = h.to_json().dump();
    EXPECT_EQ(Histogram::from_json(io::parse_json(text, "state"), "state"), h) << text;
  }
}

TEST(Histogram, JsonOfAnotherMakingIsRefused) {
  const auto good = histogram_of({1.0f, 0.25f, 0.0f}).to_json();
  const auto refused = [&](const char* key, const io::Json& value, const char* words) {
    auto json = good;
    json[key] = value;
    try {
      Histogram::from_json(json, "F: m.input0");
      ADD_FAILURE() << "accepted " << json.dump();
    } catch (const io::Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind("F: m.input0", 0), 0u);
    }
  };
  refused("bins", 15, "bins");
  refused("bins", 1ull << 40, "bins");
  refused("bins", -3, "bins");
  refused("bins", 16, "at most 16 counts");
  refused("zeros", -1, "zeros");
  refused("zeros", "x", "zeros");
  refused("counts", 7, "counts");
  refused("counts", "1,2,zz", "'zz'");
  refused("counts", "ffffffffffffffffff", "counts");
  refused("counts", "", "do not belong together");
  refused("exponent", 5, "do not belong together");
  refused("exponent", nullptr, "do not belong together");
  refused("amax", -1.0, "amax");
  refused("amax", 1e39, "amax");
  refused("amax", 100.0, "do not belong together");
  refused("amax", 0.0, "do not belong together");
  EXPECT_THROW(Histogram::from_json(io::Json::array(), "F"), io::Error);
}

}  // namespace
}  // namespace fp8::measure
