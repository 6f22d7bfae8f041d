// SPDX-License-Identifier: Apache-2.0
// The matrix of the inputs and its quadratic form: only what is right of the diagonal is computed.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/rounding.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kStep = 64;  // columns that are summed over at a time
constexpr std::int64_t kRows = 64;  // of a quadratic form, per range

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

/// body(row, rows) for blocks of rows of an upper half, the longest first.
void for_row_blocks(std::int64_t n, const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t height = std::clamp<std::int64_t>(n / 8 / 6 * 6, 48, 192);
  parallel_for((n + height - 1) / height, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first * height; row < std::min(n, last * height); row += height)
      body(row, std::min(height, n - row));
  });
}

/// x G x^T of some rows, by blocks of columns: what is above the diagonal counts twice.
double form_of(const float* e, std::int64_t rows, const float* gram, std::int64_t n) {
  std::vector<float> product(static_cast<std::size_t>(rows * kStep)), square(kStep * kStep);
  double sum = 0;
  for (std::int64_t col = 0; col < n; col += kStep) {
    const std::int64_t width = std::min(kStep, n - col);
    for (std::int64_t i = 0; i < width; ++i) {  // half of its diagonal, so that all of it counts twice
      for (std::int64_t j = 0; j < width; ++j)
        square[i * width + j] = j < i ? 0 : gram[(col + i) * n + col + j] * (i == j ? 0.5f : 1.0f);
    }
    multiply({e, n, 1}, {gram + col, n, 1}, rows, width, col, product.data(), width, false);
    multiply({e + col, n, 1}, {square.data(), width, 1}, rows, width, width, product.data(), width, true);
    for (std::int64_t r = 0; r < rows; ++r) {
      double row = 0;
      for (std::int64_t j = 0; j < width; ++j) row += double{product[r * width + j]} * double{e[r * n + col + j]};
      sum += 2 * row;
    }
  }
  return sum;
}

}  // namespace

void add_gram(const float* x, std::int64_t tokens, std::int64_t n, float* gram) {
  require(tokens >= 0 && n >= 0, "add_gram: sizes must not be negative");
  if (tokens == 0 || n == 0) return;
  require(x != nullptr && gram != nullptr, "add_gram: x and gram must not be null");
  for_row_blocks(n, [&](std::int64_t row, std::int64_t rows) {
    multiply({x + row, 1, n}, {x + row, n, 1}, rows, n - row, tokens, gram + row * n + row, n, true);
  });
}

void permute_gram(const float* gram, std::span<const std::int64_t> order, double damping, double* out) {
  const auto n = static_cast<std::int64_t>(order.size());
  for (const auto i : order) require(i >= 0 && i < n, "permute_gram: the order is no permutation");
  require(n == 0 || (gram != nullptr && out != nullptr), "permute_gram: gram and out must not be null");
  parallel_each(n, 16, [&](std::int64_t i) {
    for (std::int64_t j = i; j < n; ++j) {
      const auto [low, high] = std::minmax(order[i], order[j]);
      out[i * n + j] = gram[low * n + high];
    }
    out[i * n + i] += damping;
  });
}

double quadratic_form(const float* e, std::int64_t rows, const float* gram, std::int64_t n) {
  require(rows >= 0 && n >= 0, "quadratic_form: sizes must not be negative");
  if (rows == 0 || n == 0) return 0;
  require(e != nullptr && gram != nullptr, "quadratic_form: e and gram must not be null");
  const std::int64_t ranges = (rows + kRows - 1) / kRows;
  std::vector<double> sums(static_cast<std::size_t>(ranges));
  parallel_each(ranges, 1, [&](std::int64_t i) {
    sums[static_cast<std::size_t>(i)] = form_of(e + i * kRows * n, std::min(kRows, rows - i * kRows), gram, n);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace fp8::kernels
