// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz against the published iteration, written out in f64.

#include <Eigen/Dense>

#include "fp8/runtime/kernels/optim.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

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
  for (const auto& [rows, cols] : kShapes) {
    for (const int steps : {1, 2, 5}) {
      const auto before = normal(rows * cols, 3);
      auto after = before;
      const Matrix m{after.data(), rows, cols};
      NewtonSchulz options{.steps = steps};
      orthogonalize({&m, 1}, options);
      EXPECT_LT(error(before, after, rows, cols, steps), 2e-4) << rows << " x " << cols << ", " << steps;
    }
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
  for (int i = 0; i < 96; ++i) {
    for (int j = 0; j < 128; ++j) {
      float& sum = before[static_cast<std::size_t>(i * 128 + j)];
      for (int k = 0; k < 3; ++k)
        sum += left[static_cast<std::size_t>(i * 3 + k)] * right[static_cast<std::size_t>(k * 128 + j)];
    }
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
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scope(level);
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
}

TEST(Orthogonalize, BadArgumentsAreErrors) {
  float x[4] = {};
  const Matrix ok{x, 2, 2}, null{nullptr, 2, 2}, negative{x, -2, 2};
  NewtonSchulz none{.steps = 0};
  EXPECT_THROW(orthogonalize({&ok, 1}, none), std::invalid_argument);
  EXPECT_THROW(orthogonalize({&null, 1}, {}), std::invalid_argument);
  EXPECT_THROW(orthogonalize({&negative, 1}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
