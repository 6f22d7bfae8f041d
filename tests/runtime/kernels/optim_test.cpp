// SPDX-License-Identifier: Apache-2.0
// The arithmetic of optimizers against f64 formulas, and its bits on every level and for 1 and 3 threads.
#include "fp8/runtime/kernels/optim.h"

#include <Eigen/Dense>

#include "fp8/runtime/kernels/float_bits.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// An array in any storage that remembers its values; fp8 is written with scale 1 by a cast to nearest on the format's
/// grid.
struct Stored {
  Stored(const std::vector<float>& x, Storage type) : type(type), n(static_cast<std::int64_t>(x.size())) {
    bytes.resize(x.size() * 4);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (type == Storage::F32) reinterpret_cast<float*>(bytes.data())[i] = x[i];
      if (type == Storage::BF16) reinterpret_cast<std::uint16_t*>(bytes.data())[i] = f32_to_bf16(x[i]);
      if (type == Storage::F16) reinterpret_cast<std::uint16_t*>(bytes.data())[i] = f32_to_f16(x[i]);
      if (is_fp8(type)) bytes[i] = 0;
    }
  }
  Array array() { return {bytes.data(), n, type}; }
  double at(std::size_t i, double scale = 1) const {
    if (type == Storage::F32) return reinterpret_cast<const float*>(bytes.data())[i];
    if (type == Storage::BF16) return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(bytes.data())[i]);
    if (type == Storage::F16) return f16_to_f32(reinterpret_cast<const std::uint16_t*>(bytes.data())[i]);
    const int code = bytes[i];
    const double magnitude = test::grid_value(code & 127, type == Storage::E4M3 ? Format::E4M3 : Format::E5M2);
    return (code & 128 ? -magnitude : magnitude) / scale;
  }
  Storage type;
  std::int64_t n;
  std::vector<std::uint8_t> bytes;
};

/// f() on every level with 1 and 3 threads: always the same bytes.
template <class F>
void expect_same_bytes_everywhere(F&& f) {
  const auto first = f();
  for (const SimdLevel level : every_level())
    for (const int threads : {1, 3}) {
      const Threads set(threads);
      EXPECT_TRUE(first == f()) << name_of(level) << ", " << threads << " threads";
    }
}

AdamFactors factors() {
  AdamFactors f;
  f.beta1 = 0.9f, f.rest1 = 0.1f, f.beta2 = 0.99f, f.rest2 = 0.01f;
  f.eps = 1e-6f, f.root_scale = 1.5f, f.decay = 0.99f, f.neg_step = -0.01f;
  return f;
}

constexpr std::size_t kSizes[] = {1, 7, 4096, 4097, 100003};

/// weight, gradient, first and second moment of each size, one step, against f64.
void expect_formula(const Storage (&types)[4]) {
  std::vector<std::vector<Stored>> before;
  for (const std::size_t n : kSizes) {
    const auto seed = static_cast<unsigned>(n);
    auto square = normal(n, seed + 3);
    for (float& x : square) x *= x;
    before.push_back({{normal(n, seed), types[0]},
                      {normal(n, seed + 1), types[1]},
                      {normal(n, seed + 2), types[2]},
                      {square, types[3]}});
  }
  auto after = before;
  std::vector<AdamTensor> work;
  for (auto& t : after)
    work.push_back({t[0].array(), t[1].array(), t[2].array(), t[3].array(), nullptr, nullptr, factors(), 0});
  adam_step(work, Dialect::ocp);
  const AdamFactors f = factors();
  const auto error = [&](int which) { return types[which] == Storage::F32 ? 1e-6 : 4e-3; };
  for (std::size_t t = 0; t < before.size(); ++t)
    for (std::size_t i = 0; i < kSizes[t]; ++i) {
      const double w = before[t][0].at(i), g = before[t][1].at(i);
      const double m = f.beta1 * before[t][2].at(i) + f.rest1 * g, v = f.beta2 * before[t][3].at(i) + f.rest2 * g * g;
      const double expected = w * f.decay + f.neg_step * (m / (std::sqrt(v) * f.root_scale + f.eps));
      ASSERT_NEAR(after[t][2].at(i), m, error(2) * std::abs(m) + 1e-7) << kSizes[t] << " " << i;
      ASSERT_NEAR(after[t][3].at(i), v, error(3) * std::abs(v)) << kSizes[t] << " " << i;
      ASSERT_NEAR(after[t][0].at(i), expected, error(0) * std::abs(expected) + 1e-7) << kSizes[t] << " " << i;
    }
}

TEST(AdamStep, IsTheFormulaForAnyMixtureOfF32AndBf16) {
  constexpr Storage kTypes[] = {Storage::F32, Storage::BF16};
  for (int mixture = 0; mixture < 16; ++mixture) {
    SCOPED_TRACE(mixture);
    expect_formula({kTypes[mixture & 1], kTypes[mixture >> 1 & 1], kTypes[mixture >> 2 & 1], kTypes[mixture >> 3 & 1]});
  }
}

TEST(AdamStep, TakesF16WeightsAndGradientsBesideAnyMoments) {
  expect_formula({Storage::F16, Storage::F16, Storage::F32, Storage::F32});
  expect_formula({Storage::F16, Storage::F32, Storage::BF16, Storage::F32});
  expect_formula({Storage::F32, Storage::F16, Storage::F32, Storage::BF16});
}

TEST(AdamStep, RoundsFp8MomentsToANeighbourWithAScaleThatFits) {
  for (const Dialect dialect : {Dialect::gaudi2, Dialect::ocp}) {
    const std::size_t n = 10000;
    const auto grad = normal(n, 5, 1e-3f);
    Stored w(normal(n, 6), Storage::F32), g(grad, Storage::F32), m({grad.begin(), grad.end()}, Storage::E4M3),
        v({grad.begin(), grad.end()}, Storage::E5M2);
    float m_scale = 4, v_scale = 2;
    const AdamFactors f = factors();
    const AdamTensor t{w.array(), g.array(), m.array(), v.array(), &m_scale, &v_scale, f, 11};
    adam_step({&t, 1}, dialect);
    double most_m = 0, most_v = 0, sum_exact = 0, sum_stored = 0;
    for (const float x : grad) {
      most_m = std::max(most_m, std::abs(f.rest1 * static_cast<double>(x)));
      most_v = std::max(most_v, f.rest2 * static_cast<double>(x) * x);
    }
    const double max = dialect == Dialect::gaudi2 ? 240 : 448;
    EXPECT_EQ(m_scale, std::exp2(std::floor(std::log2(max / most_m))));
    EXPECT_EQ(v_scale, std::exp2(std::floor(std::log2(57344 / most_v))));
    for (std::size_t i = 0; i < n; ++i) {
      const double exact_m = f.rest1 * static_cast<double>(grad[i]),
                   exact_v = f.rest2 * static_cast<double>(grad[i]) * grad[i];
      // One step of the grid at most: 2^-3 of E4M3's value, 2^-2 of E5M2's, or the step of the subnormals.
      ASSERT_NEAR(m.at(i, m_scale), exact_m, std::max(std::abs(exact_m) / 8, 0x1p-9 / m_scale)) << i;
      ASSERT_NEAR(v.at(i, v_scale), exact_v, std::max(exact_v / 4, 0x1p-16 / v_scale)) << i;
      sum_exact += exact_v;
      sum_stored += v.at(i, v_scale);
    }
    EXPECT_NEAR(sum_stored / sum_exact, 1, 0.01);  // unbiased
  }
}

TEST(AdamStep, ASecondStepReadsFp8MomentsBackWithTheReciprocal) {
  const std::size_t n = 5000;
  Stored w(normal(n, 1), Storage::F32), g(normal(n, 2, 1e-4f), Storage::F32), m(normal(n, 3), Storage::E5M2),
      v(normal(n, 3), Storage::F32);
  std::fill(v.bytes.begin(), v.bytes.end(), std::uint8_t{0});
  float scale = 1;
  AdamFactors f = factors();
  const AdamTensor t{w.array(), g.array(), m.array(), v.array(), &scale, nullptr, f, 3};
  adam_step({&t, 1}, Dialect::ocp);
  const Stored held = m, weight = w, second = v;
  const float held_scale = scale;
  ASSERT_GT(held_scale, 1e6f);  // so that a wrong direction shows
  adam_step({&t, 1}, Dialect::ocp);
  for (std::size_t i = 0; i < n; ++i) {
    const double moment = f.beta1 * held.at(i, held_scale) + f.rest1 * g.at(i),
                 v2 = f.beta2 * second.at(i) + f.rest2 * g.at(i) * g.at(i);
    const double expected = weight.at(i) * f.decay + f.neg_step * (moment / (std::sqrt(v2) * f.root_scale + f.eps));
    ASSERT_NEAR(w.at(i), expected, 2e-6 * std::abs(expected) + 1e-7) << i;
  }
}

TEST(AdamStep, BitsDependOnNeitherLevelNorThreads) {
  expect_same_bytes_everywhere([] {
    std::vector<std::uint8_t> all;
    for (const Storage moments : {Storage::F32, Storage::BF16, Storage::E4M3, Storage::E5M2}) {
      std::vector<Stored> arrays;
      std::vector<float> scales(20, 1.0f);
      std::vector<AdamTensor> work;
      for (const std::size_t n : kSizes)
        for (const Storage type : {Storage::F32, Storage::BF16, moments, moments})
          arrays.emplace_back(normal(n, 9), type);
      for (std::size_t i = 2; i < arrays.size(); i += 4) {  // the second moment is not negative
        std::fill(arrays[i + 1].bytes.begin(), arrays[i + 1].bytes.end(), std::uint8_t{0});
      }
      for (std::size_t i = 0; i < arrays.size(); i += 4)
        work.push_back({arrays[i].array(), arrays[i + 1].array(), arrays[i + 2].array(), arrays[i + 3].array(),
                        &scales[i / 2], &scales[i / 2 + 1], factors(), i});
      for (int step = 0; step < 2; ++step) adam_step(work, Dialect::gaudi3);
      for (const Stored& a : arrays) all.insert(all.end(), a.bytes.begin(), a.bytes.end());
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales.data());
      all.insert(all.end(), bytes, bytes + scales.size() * 4);
    }
    return all;
  });
}

TEST(AdamStep, BadValuesStayWhereTheyAre) {
  std::vector<float> grad = normal(100, 1);
  grad[3] = std::numeric_limits<float>::infinity();
  grad[5] = std::numeric_limits<float>::quiet_NaN();
  Stored w(normal(100, 2), Storage::F32), g(grad, Storage::F32), m(grad, Storage::E4M3),
      v(std::vector<float>(100), Storage::F32);
  float scale = 8;
  const AdamTensor t{w.array(), g.array(), m.array(), v.array(), &scale, nullptr, factors(), 0};
  adam_step({&t, 1}, Dialect::ocp);
  EXPECT_EQ(scale, 8);  // no scale fits infinity
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(w.at(i)), i == 3 || i == 5) << i;  // inf / inf
}

TEST(MomentScale, IsAPowerOfTwoThatFillsTheFormat) {
  EXPECT_EQ(moment_scale(1, Format::E4M3, Dialect::gaudi2, 3), 128);
  EXPECT_EQ(moment_scale(1, Format::E4M3, Dialect::ocp, 3), 256);
  EXPECT_EQ(moment_scale(1.75f, Format::E4M3, Dialect::ocp, 3), 256);  // 448 exactly
  EXPECT_EQ(moment_scale(std::nextafter(1.75f, 2.0f), Format::E4M3, Dialect::ocp, 3), 128);
  EXPECT_EQ(moment_scale(1, Format::E5M2, Dialect::gaudi2, 3), 32768);
  EXPECT_EQ(moment_scale(1e-44f, Format::E5M2, Dialect::ocp, 3), 0x1p126f);
  EXPECT_EQ(moment_scale(std::numeric_limits<float>::max(), Format::E4M3, Dialect::ocp, 3), 0x1p-120f);
  for (const float none : {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(moment_scale(none, Format::E4M3, Dialect::ocp, 3), 3);
}

TEST(SumsOfSquares, AreExactToF64AndTheSameEverywhere) {
  std::vector<std::vector<float>> data;
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{4095}, std::size_t{300001}}) {
    data.push_back(normal(n, 4, 1e-20f));  // squares below f32's range
  }
  expect_same_bytes_everywhere([&] {
    std::vector<Array> work;
    for (auto& x : data) work.push_back({x.data(), static_cast<std::int64_t>(x.size()), Storage::F32});
    std::vector<double> sums(work.size(), -1);
    sums_of_squares(work, sums.data());
    for (std::size_t i = 0; i < data.size(); ++i) {
      long double exact = 0;
      for (const float x : data[i]) exact += static_cast<long double>(x) * x;
      EXPECT_NEAR(sums[i], static_cast<double>(exact), 1e-13 * static_cast<double>(exact));
    }
    return sums;
  });
}

TEST(ScaleAdd, AddsAndScalesAcrossTypes) {
  expect_same_bytes_everywhere([] {
    const std::size_t n = 9001;
    Stored y(normal(n, 1), Storage::BF16), x(normal(n, 2), Storage::F32), z(normal(n, 3), Storage::F32);
    const Stored y0 = y, z0 = z;
    const ScaleAdd work[] = {{y.array(), x.array(), 0.5f, 2.0f}, {z.array(), {}, -3.0f, 0}};
    scale_add(work);
    for (std::size_t i = 0; i < n; ++i) {
      const double expected = 0.5 * y0.at(i) + 2.0 * x.at(i);
      EXPECT_NEAR(y.at(i), expected, std::abs(expected) * 0x1p-8) << i;
      EXPECT_EQ(z.at(i), static_cast<float>(-3 * z0.at(i))) << i;
    }
    return y.bytes;
  });
}

TEST(ScaleAdd, RoundsToBf16LikeTheCast) {
  std::vector<float> values;
  for (const std::uint32_t bits :
       {0x3F808000u, 0x3F818000u, 0x3F808001u, 0x7F7FFFFFu, 0x80000000u, 0x7FC00000u, 0x7F800001u})
    values.push_back(float_of(bits));
  for (const SimdLevel level : every_level()) {
    Stored y(std::vector<float>(values.size()), Storage::BF16), x(values, Storage::F32);
    const ScaleAdd t{y.array(), x.array(), 0, 1};
    scale_add({&t, 1});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto code = reinterpret_cast<std::uint16_t*>(y.bytes.data())[i];
      if (std::isnan(values[i])) {
        EXPECT_GT(code & 0x7FFF, 0x7F80) << name_of(level);
      } else {
        EXPECT_EQ(bf16_to_f32(code), bf16_to_f32(f32_to_bf16(0.0f + values[i]))) << i;
      }
    }
  }
}

TEST(SgdStep, HasTheThreeForms) {
  const std::size_t n = 5003;
  for (const bool nesterov : {false, true})
    for (const bool first : {false, true})
      for (const bool buffered : {false, true}) {
        Stored w(normal(n, 1), Storage::F32), g(normal(n, 2), Storage::BF16), b(normal(n, 3), Storage::F32);
        const Stored w0 = w, b0 = b;
        SgdTensor t{w.array(), g.array(), buffered ? b.array() : Array{}, 0.1f, 0.9f, 0.5f, -0.01f, nesterov, first};
        sgd_step({&t, 1});
        for (std::size_t i = 0; i < n; ++i) {
          double d = g.at(i) + static_cast<double>(0.1f) * w0.at(i), buffer = b0.at(i);
          if (buffered) {
            buffer = first ? d : static_cast<double>(0.9f) * buffer + 0.5 * d;
            d = nesterov ? d + static_cast<double>(0.9f) * buffer : buffer;
          }
          ASSERT_NEAR(b.at(i), buffer, 1e-6) << i;
          ASSERT_NEAR(w.at(i), w0.at(i) - static_cast<double>(0.01f) * d, 1e-6) << i;
        }
      }
}

TEST(Optim, BadArgumentsAreErrors) {
  float x[4] = {}, scale = 0;
  const Array ok{x, 4, Storage::F32}, fp8{x, 4, Storage::E4M3}, shorter{x, 3, Storage::F32},
      null{nullptr, 4, Storage::F32};
  const auto throws = [](auto&& f) { EXPECT_THROW(f(), std::invalid_argument); };
  double out[2];
  throws([&] { sums_of_squares({&fp8, 1}, out); });
  throws([&] { sums_of_squares({&null, 1}, out); });
  throws([&] { sums_of_squares({&ok, 1}, nullptr); });
  const ScaleAdd uneven{ok, shorter, 1, 1};
  throws([&] { scale_add({&uneven, 1}); });
  const AdamTensor no_scale{ok, ok, fp8, ok, nullptr, nullptr, {}, 0},
      bad_scale{ok, ok, fp8, ok, &scale, nullptr, {}, 0}, fp8_weight{fp8, ok, ok, ok, nullptr, nullptr, {}, 0};
  for (const AdamTensor& t : {no_scale, bad_scale, fp8_weight}) throws([&] { adam_step({&t, 1}, Dialect::ocp); });
  const SgdTensor negative{{x, -1, Storage::F32}, ok, {}, 0, 0, 1, 0, false, false};
  throws([&] { sgd_step({&negative, 1}); });
  adam_step({}, Dialect::ocp);
  scale_add({});
}

// Newton-Schulz against the published iteration, written out in f64.

Rows published(Rows g, int steps) {
  const bool tall = g.rows() > g.cols();
  Rows x = tall ? Rows(g.transpose()) : g;
  x /= std::max(x.norm(), 1e-7);
  for (int i = 0; i < steps; ++i) {
    const Rows a = x * x.transpose(), b = -4.7750 * a + 2.0315 * a * a;
    x = (3.4445 * x + b * x).eval();
  }
  return tall ? Rows(x.transpose()) : x;
}

double error(const std::vector<float>& before, const std::vector<float>& after, std::int64_t rows, std::int64_t cols,
             int steps) {
  const Rows g =
      Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(before.data(), rows, cols).cast<double>();
  const Rows y =
      Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(after.data(), rows, cols).cast<double>();
  return (y - published(g, steps)).norm() / std::sqrt(static_cast<double>(std::min(rows, cols)));
}

TEST(Orthogonalize, IsThePublishedIteration) {
  constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},   {1, 9},    {9, 1},    {17, 17},
                                                               {48, 96}, {50, 129}, {130, 47}, {192, 192}};
  for (const auto& [rows, cols] : kShapes)
    for (const int steps : {1, 2, 5}) {
      const auto before = normal(rows * cols, 3);
      auto after = before;
      const Matrix m{after.data(), rows, cols};
      orthogonalize({&m, 1}, {.steps = steps});
      EXPECT_LT(error(before, after, rows, cols, steps), 2e-4) << rows << " x " << cols << ", " << steps;
    }
}

TEST(Orthogonalize, BringsSingularValuesNearOne) {
  auto x = normal(64 * 160, 1);
  const Matrix m{x.data(), 64, 160};
  orthogonalize({&m, 1}, {});
  const Eigen::MatrixXf y = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(x.data(), 64, 160);
  const Eigen::VectorXf s = Eigen::JacobiSVD<Eigen::MatrixXf>(y).singularValues();
  EXPECT_GT(s.minCoeff(), 0.5f);  // what the post says of five steps
  EXPECT_LT(s.maxCoeff(), 1.5f);
}

TEST(Orthogonalize, KeepsALowRankGradientOfLowRank) {
  // Rank 3 in 96 x 128: nothing may grow out of the rounding errors of the other 93 directions.
  const auto left = normal(96 * 3, 5), right = normal(3 * 128, 6);
  std::vector<float> before(96 * 128);
  for (int i = 0; i < 96; ++i)
    for (int j = 0; j < 128; ++j) {
      float& sum = before[static_cast<std::size_t>(i * 128 + j)];
      for (int k = 0; k < 3; ++k)
        sum += left[static_cast<std::size_t>(i * 3 + k)] * right[static_cast<std::size_t>(k * 128 + j)];
    }
  auto after = before;
  const Matrix m{after.data(), 96, 128};
  orthogonalize({&m, 1}, {});
  const Eigen::MatrixXf y = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(after.data(), 96, 128);
  const Eigen::VectorXf s = Eigen::JacobiSVD<Eigen::MatrixXf>(y).singularValues();
  EXPECT_GT(s(2), 0.5f);
  EXPECT_LT(s(3), 1e-3f);
}

TEST(Orthogonalize, ZerosStayZerosAndNothingIsAllowed) {
  std::vector<float> zeros(12);
  const Matrix m[] = {{zeros.data(), 3, 4}, {nullptr, 0, 4}, {nullptr, 4, 0}};
  orthogonalize(m, {});
  for (const float x : zeros) EXPECT_EQ(x, 0);
  orthogonalize({}, {});
}

TEST(Orthogonalize, BitsDependOnNeitherThreadsNorNeighboursNorLevel) {
  const auto before = normal(100 * 150, 8);
  std::vector<float> first;
  for (const SimdLevel level : every_level())
    for (const int threads : {1, 2, 3}) {
      const Threads pool(threads);
      for (const std::size_t copies : {std::size_t{1}, std::size_t{9}}) {  // 9: side by side
        std::vector<std::vector<float>> data(copies, before);
        std::vector<Matrix> work;
        for (auto& x : data) work.push_back({x.data(), 100, 150});
        orthogonalize(work, {});
        if (first.empty()) first = data[0];
        for (const auto& x : data) EXPECT_TRUE(x == first) << name_of(level) << " " << threads << " " << copies;
      }
    }
}

TEST(Orthogonalize, BadArgumentsAreErrors) {
  float x[4] = {};
  const Matrix ok{x, 2, 2}, null{nullptr, 2, 2}, negative{x, -2, 2};
  EXPECT_THROW(orthogonalize({&ok, 1}, {.steps = 0}), std::invalid_argument);
  EXPECT_THROW(orthogonalize({&null, 1}, {}), std::invalid_argument);
  EXPECT_THROW(orthogonalize({&negative, 1}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
