// SPDX-License-Identifier: Apache-2.0
// Compensated rounding against the paper's equations in double, with an inverse, against brute force over neighbouring
// codes, and against nearest rounding where there is nothing to compensate; its parts against plain sums.
#include "fp8/runtime/kernels/rounding.h"

#include <Eigen/Dense>
#include <numeric>

#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using Doubles = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Floats random_matrix(std::int64_t rows, std::int64_t cols, unsigned seed, float deviation = 1) {
  const auto x = test::normal(static_cast<std::size_t>(rows * cols), seed, deviation);
  return Eigen::Map<const Floats>(x.data(), rows, cols);
}

/// Tokens whose columns depend on each other, as activations do.
Floats correlated(std::int64_t tokens, std::int64_t n, unsigned seed) {
  const Floats mix = random_matrix(n, n, seed + 1, 0.5f / std::sqrt(static_cast<float>(n)));
  Floats x = random_matrix(tokens, n, seed);
  return x * (Floats::Identity(n, n) * 0.3f + mix) +
         random_matrix(tokens, 1, seed + 2) * random_matrix(1, n, seed + 3, 0.3f);
}

template <class M>
Doubles symmetric(const M& upper) {
  const Doubles half = upper.template cast<double>();
  return half.selfadjointView<Eigen::Upper>();
}

/// A case: gram, its damped copy in the order of falling diagonals from the last column on, weights and channel scales.
struct Problem {
  Problem(std::int64_t n_rows, std::int64_t n_cols, std::int64_t tokens, unsigned seed, Format f = Format::E4M3,
          float most = 448)
      : rows(n_rows), cols(n_cols), format(f), max(most), w(random_matrix(rows, cols, seed + 10, 0.05f)) {
    const Floats x = correlated(tokens, cols, seed);
    gram = Floats::Zero(cols, cols);
    add_gram(x.data(), tokens, cols, gram.data());
    sort();
  }
  void sort() {
    order.resize(static_cast<std::size_t>(cols));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return gram(a, a) < gram(b, b); });
    damped = Doubles::Zero(cols, cols);
    permute_gram(gram.data(), order, 0.01 * gram.diagonal().mean(), damped.data());
    permuted = Floats(rows, cols);
    for (std::int64_t k = 0; k < cols; ++k) permuted.col(k) = w.col(order[static_cast<std::size_t>(k)]);
    scale_inv.resize(static_cast<std::size_t>(rows));
    scale.resize(scale_inv.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      scale_inv[r] = w.row(r).cwiseAbs().maxCoeff() / max;
      scale[r] = 1.0f / scale_inv[r];
    }
  }
  /// r and e of the sweep.
  std::pair<Floats, Floats> swept() const {
    Doubles a = damped;
    Floats factor(cols, cols);
    EXPECT_TRUE(factor_gram(a.data(), cols, factor.data()));
    std::pair<Floats, Floats> out{Floats(rows, cols), Floats(rows, cols)};
    CompensatedRounding args;
    args.rows = rows, args.cols = cols, args.w = permuted.data(), args.factor = factor.data();
    args.format = format, args.max = max, args.scale = scale.data(), args.scale_inv = scale_inv.data();
    args.rounded = out.first.data(), args.error = out.second.data();
    round_compensated(args);
    return out;
  }
  double nearest(double target, std::int64_t row) const {
    static const auto e4m3 = test::grid(Format::E4M3, 448), gaudi2 = test::grid(Format::E4M3, 240),
                      e5m2 = test::grid(Format::E5M2, 57344);
    const auto& grid = format == Format::E5M2 ? e5m2 : max == 240 ? gaudi2 : e4m3;
    const double y = target * scale[row];
    return std::copysign(grid[test::nearest_on_grid(y, grid)], y);
  }
  /// Sum over rows of e A e^T, A damped.
  double objective(const Doubles& rounded) const {
    const Doubles a = symmetric(damped);
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const Eigen::RowVectorXd e = permuted.row(r).cast<double>() - rounded.row(r) * double{scale_inv[r]};
      sum += e * a * e.transpose();
    }
    return sum;
  }

  std::int64_t rows, cols;
  Format format;
  float max;
  Floats w, gram, permuted;
  Doubles damped;
  std::vector<std::int64_t> order;
  std::vector<float> scale, scale_inv;
};

/// The paper: the inverse's upper Cholesky factor, errors moved to the columns that follow. Its first column is our
/// last.
Doubles by_the_paper(const Problem& p) {
  const auto reversed = [](const Doubles& m) -> Doubles { return m.rowwise().reverse(); };
  const Doubles a = reversed(reversed(symmetric(p.damped).transpose()).transpose());
  const Doubles inverse = a.inverse();
  const Doubles u = Eigen::LLT<Doubles>(inverse).matrixU();
  Doubles w = reversed(p.permuted.cast<double>()), rounded(p.rows, p.cols);
  for (std::int64_t i = 0; i < p.cols; ++i)
    for (std::int64_t r = 0; r < p.rows; ++r) {
      rounded(r, i) = p.nearest(w(r, i), r);
      const double error = (w(r, i) - rounded(r, i) * p.scale_inv[r]) / u(i, i);
      w.row(r).tail(p.cols - i - 1) -= error * u.row(i).tail(p.cols - i - 1);
    }
  return reversed(rounded);
}

double share_of_equal(const Floats& a, const Doubles& b) {
  return (a.cast<double>().array() == b.array()).cast<double>().mean();
}

TEST(Rounding, TheSweepIsThePapers) {
  for (const auto& [format, max] : {std::pair{Format::E4M3, 448.0f}, {Format::E4M3, 240.0f}, {Format::E5M2, 57344.0f}})
    for (const std::int64_t cols : {1, 5, 63, 64, 65, 130, 256}) {
      const Problem p(70, cols, 600, static_cast<unsigned>(cols), format, max);
      EXPECT_GE(share_of_equal(p.swept().first, by_the_paper(p)), 0.999) << cols;
    }
}

TEST(Rounding, LargeMatricesReachTheSameObjective) {
#if defined(__SANITIZE_ADDRESS__)
  const Problem p(512, 512, 1024, 3);  // Eigen's inverse of the large one would take minutes
#else
  const Problem p(512, 2048, 4096, 3);
#endif
  const Doubles expected = by_the_paper(p);
  EXPECT_NEAR(p.objective(p.swept().first.cast<double>()) / p.objective(expected), 1, 2e-4);
}

/// The least objective over the codes next to the weight, four of them in each column.
double least_of_neighbours(const Problem& p) {
  static const auto grid = test::grid(Format::E4M3, 448);
  std::vector<std::vector<double>> near(static_cast<std::size_t>(p.cols));
  for (std::int64_t k = 0; k < p.cols; ++k) {
    const double y = double{p.permuted(0, k)} * p.scale[0];
    std::vector<double> all;
    for (const double g : grid) all.insert(all.end(), {g, -g});
    std::sort(all.begin(), all.end(), [&](double a, double b) { return std::abs(a - y) < std::abs(b - y); });
    all.erase(std::unique(all.begin(), all.end()), all.end());
    near[static_cast<std::size_t>(k)].assign(all.begin(), all.begin() + 4);
  }
  double best = std::numeric_limits<double>::infinity();
  for (int choice = 0; choice < 1 << (2 * p.cols); ++choice) {
    Doubles rounded(1, p.cols);
    for (std::int64_t k = 0; k < p.cols; ++k) rounded(0, k) = near[static_cast<std::size_t>(k)][choice >> (2 * k) & 3];
    best = std::min(best, p.objective(rounded));
  }
  return best;
}

TEST(Rounding, BetweenBruteForceAndNearest) {
  double brute = 0, swept = 0, nearest = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const Problem p(1, 5, 64, seed);
    Doubles plain(1, 5);
    for (int k = 0; k < 5; ++k) plain(0, k) = p.nearest(p.permuted(0, k), 0);
    brute += least_of_neighbours(p), swept += p.objective(p.swept().first.cast<double>());
    nearest += p.objective(plain);
  }
  EXPECT_LT(brute, swept);
  EXPECT_LT(swept, 0.9 * nearest);
}

TEST(Rounding, ADiagonalLeavesNearest) {
  for (const SimdLevel level : test::every_level()) {
    Problem p(67, 150, 300, 5);
    p.gram = Floats(p.gram.diagonal().asDiagonal());
    p.w(3, 7) = -0.0f, p.w(4, 9) = -1e-9f;
    p.sort();
    const Floats rounded = p.swept().first;
    std::vector<std::uint8_t> codes(rounded.size()), cast(codes.size());
    cast_to_fp8(dense_cast(rounded.data(), p.rows, p.cols, codes.data(), p.format, p.max));
    CastArgs args = dense_cast(p.permuted.data(), p.rows, p.cols, cast.data(), p.format, p.max);
    args.layout = ScaleLayout::per_row(), args.scales = p.scale.data();
    cast_to_fp8(args);
    EXPECT_EQ(codes, cast) << name_of(level);
  }
}

TEST(Rounding, ErrorsAndRoundedValuesBelongTogether) {
  const Problem p(130, 100, 400, 8);
  const auto [rounded, error] = p.swept();
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t k = 0; k < p.cols; ++k) {
      EXPECT_EQ(error(r, k), p.permuted(r, k) - rounded(r, k) * p.scale_inv[r]);
      EXPECT_EQ(p.nearest(double{rounded(r, k)} * p.scale_inv[r], r), rounded(r, k)) << "a value of the format";
    }
}

TEST(Rounding, GroupsOfColumnsHaveTheirOwnScales) {
  const Problem p(5, 96, 300, 4);
  std::vector<std::int32_t> group(96);
  for (int k = 0; k < 96; ++k) group[k] = static_cast<int>(p.order[k]) / 32;
  std::vector<float> scale(15), inv(15);
  for (int g = 0; g < 3; ++g)
    for (int r = 0; r < 5; ++r) inv[g * 5 + r] = p.scale_inv[r] * (1 + g), scale[g * 5 + r] = 1 / inv[g * 5 + r];
  Doubles a = p.damped;
  Floats factor(96, 96), rounded(5, 96), error(5, 96);
  ASSERT_TRUE(factor_gram(a.data(), 96, factor.data()));
  CompensatedRounding args;
  args.rows = 5, args.cols = 96, args.w = p.permuted.data(), args.factor = factor.data(), args.group = group.data();
  args.scale = scale.data(), args.scale_inv = inv.data(), args.rounded = rounded.data(), args.error = error.data();
  round_compensated(args);
  for (int r = 0; r < 5; ++r)
    for (int k = 0; k < 96; ++k)
      EXPECT_EQ(error(r, k), p.permuted(r, k) - rounded(r, k) * inv[group[k] * 5 + r]) << r << " " << k;
  // The last column has nothing to make good: nearest under its own scale.
  for (int r = 0; r < 5; ++r) EXPECT_LE(std::abs(error(r, 95)), 16 * inv[group[95] * 5 + r]);
}

TEST(Rounding, BitsDependNeitherOnThreadsNorOnTheLevel) {
  std::optional<Floats> first;
  for (const int threads : {1, 2, 5}) {
    test::Threads some(threads);
    for (const SimdLevel level : test::every_level()) {
      const Floats rounded = Problem(150, 300, 500, 6).swept().first;
      if (!first.has_value()) first = rounded;
      EXPECT_TRUE(*first == rounded) << name_of(level) << threads;
    }
  }
}

TEST(Rounding, GramFactorAndFormOfOddSizes) {
  for (const std::int64_t n : {1, 2, 47, 64, 65, 200, 421}) {
    const Floats x = correlated(2 * n + 3, n, static_cast<unsigned>(n)), e = random_matrix(130, n, 9, 0.01f);
    Floats gram = Floats::Zero(n, n);
    add_gram(x.data(), n, n, gram.data());
    add_gram(x.data() + n * n, n + 3, n, gram.data());
    const Doubles expected = x.cast<double>().transpose() * x.cast<double>();
    EXPECT_LE((symmetric(gram) - expected).cwiseAbs().maxCoeff(), 1e-4 * expected.cwiseAbs().maxCoeff()) << n;
    const double form = (e.cast<double>() * symmetric(gram)).cwiseProduct(e.cast<double>()).sum();
    EXPECT_NEAR(quadratic_form(e.data(), 130, gram.data(), n) / form, 1, 1e-5) << n;
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.rbegin(), order.rend(), std::int64_t{0});
    Doubles a = Doubles::Zero(n, n);
    permute_gram(gram.data(), order, 0.5, a.data());
    const Doubles damped = symmetric(a), reversed = symmetric(gram).reverse();
    EXPECT_EQ((damped - reversed - 0.5 * Doubles::Identity(n, n)).cwiseAbs().maxCoeff(), 0) << n;
    Floats factor(n, n);
    ASSERT_TRUE(factor_gram(a.data(), n, factor.data()));
    const Doubles u = a.triangularView<Eigen::Upper>();
    EXPECT_LE((u.transpose() * u - damped).cwiseAbs().maxCoeff(), 1e-13 * damped.cwiseAbs().maxCoeff()) << n;
    for (std::int64_t k = 0; k + 1 < n; ++k) EXPECT_EQ(factor(k, n - 1), static_cast<float>(u(k, n - 1) / u(k, k)));
  }
}

TEST(Rounding, NoFactorOfWhatIsNotPositiveDefinite) {
  Floats factor(70, 70);
  const auto factored = [&](Doubles a) { return factor_gram(a.data(), 70, factor.data()); };
  EXPECT_FALSE(factored(Doubles::Zero(70, 70)));
  Doubles one = Doubles::Identity(70, 70);
  EXPECT_TRUE(factored(one));
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    one(69, 69) = bad;
    EXPECT_FALSE(factored(one)) << bad;
  }
  EXPECT_TRUE(factor_gram(nullptr, 0, nullptr));
  EXPECT_THROW(factor_gram(nullptr, 1, factor.data()), std::invalid_argument);
  EXPECT_THROW(add_gram(nullptr, 1, 1, factor.data()), std::invalid_argument);
  EXPECT_THROW(quadratic_form(nullptr, 1, factor.data(), 1), std::invalid_argument);
  EXPECT_THROW(permute_gram(factor.data(), std::vector<std::int64_t>{1}, 0, one.data()), std::invalid_argument);
  EXPECT_THROW(round_compensated({.rows = 1, .cols = 1}), std::invalid_argument);
  round_compensated({});
}

}  // namespace
}  // namespace fp8::kernels
