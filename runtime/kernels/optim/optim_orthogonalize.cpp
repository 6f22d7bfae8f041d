// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/optim.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kTile = 32;  // of the mirror: 4 KiB from two places

/// Rows of one call of multiply(): whole tiles of it; few enough that half a matrix is nearly half the work, and enough
/// to pay for its packing of b.
std::int64_t block_rows(std::int64_t rows) { return std::clamp<std::int64_t>(rows / 8 / 6 * 6, 48, 192); }

/// c[j, i] = c[i, j] for j < i.
void mirror(float* c, std::int64_t n) {
  for (std::int64_t row = 0; row < n; row += kTile) {
    for (std::int64_t col = 0; col <= row; col += kTile) {
      for (std::int64_t i = row; i < std::min(n, row + kTile); ++i) {
        for (std::int64_t j = col; j < std::min(i, col + kTile); ++j) c[j * n + i] = c[i * n + j];
      }
    }
  }
}

/// c [n, n] = a [n, k] . b [k, n] for a product that is symmetric: the blocks on and below the diagonal, then their
/// mirror.
void multiply_symmetric(const F32View& a, const F32View& b, std::int64_t n, std::int64_t k, float* c) {
  const std::int64_t height = block_rows(n), blocks = (n + height - 1) / height;
  parallel_each(blocks, 1, [&](std::int64_t i) {  // the longest first
    const std::int64_t row = (blocks - 1 - i) * height, rows = std::min(height, n - row);
    multiply({a.data + row * a.row_stride, a.row_stride, a.col_stride}, b, rows, row + rows, k, c + row * n, n, false);
  });
  mirror(c, n);
}

F32View square(const std::vector<float>& a, std::int64_t n) { return {a.data(), n, 1}; }

/// p = a I + b gram + c gram gram
void polynomial(const NewtonSchulz& o, const std::vector<float>& gram, std::int64_t n, std::vector<float>& p) {
  multiply_symmetric(square(gram, n), square(gram, n), n, n, p.data());
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = o.b * gram[i] + o.c * p[i];
  for (std::int64_t i = 0; i < n; ++i) p[static_cast<std::size_t>(i * n + i)] += o.a;
}

void orthogonalize_one(const Matrix& m, const NewtonSchulz& o) {
  const bool tall = m.rows > m.cols;
  const std::int64_t n = std::min(m.rows, m.cols), k = std::max(m.rows, m.cols), size = n * k;
  if (size == 0) return;
  const Array whole{m.data, size, Storage::F32};
  double sum = 0;
  sums_of_squares({&whole, 1}, &sum);
  const float scale = static_cast<float>(1 / std::max(std::sqrt(sum), static_cast<double>(o.eps)));
  const ScaleAdd scaling{whole, {}, scale, 0};
  scale_add({&scaling, 1});

  const F32View x{m.data, tall ? 1 : k, tall ? n : 1}, x_transposed{m.data, x.col_stride, x.row_stride};  // x: [n, k]
  const auto elements = static_cast<std::size_t>(n * n);
  std::vector<float> gram(elements), p(elements), q(elements), scratch(elements);
  multiply_symmetric(x, x_transposed, n, k, gram.data());
  polynomial(o, gram, n, q);
  if (o.steps > 1) p = q;
  for (int step = 1; step < o.steps; ++step) {
    multiply_symmetric(square(p, n), square(gram, n), n, n, scratch.data());
    multiply_symmetric(square(scratch, n), square(p, n), n, n, gram.data());
    polynomial(o, gram, n, p);
    multiply_symmetric(square(q, n), square(p, n), n, n, scratch.data());
    q.swap(scratch);
  }

  const std::vector<float> copy(m.data, m.data + size);
  const F32View from{copy.data(), tall ? n : k, 1};
  const F32View left = tall ? from : square(q, n), right = tall ? square(q, n) : from;
  const std::int64_t height = block_rows(m.rows);
  parallel_for((m.rows + height - 1) / height, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first * height; row < std::min(m.rows, last * height); row += height) {
      multiply({left.data + row * left.row_stride, left.row_stride, 1}, right, std::min(height, m.rows - row), m.cols,
               n, m.data + row * m.cols, m.cols, false);
    }
  });
}

}  // namespace

void orthogonalize(std::span<const Matrix> matrices, const NewtonSchulz& options) {
  if (options.steps < 1 || options.steps > 99)
    io::fail<std::invalid_argument>("orthogonalize: steps is {}, allowed are 1 to 99", options.steps);
  for (const Matrix& m : matrices) {
    if (m.rows < 0 || m.cols < 0 || (m.rows > 0 && m.cols > 0 && m.data == nullptr))
      throw std::invalid_argument("orthogonalize: sizes must not be negative, nor data null for a non-empty matrix");
  }
  // The costliest first, so that no thread ends long after the others.
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto cost = [&](std::size_t i) {
    return matrices[i].rows * matrices[i].cols * std::min(matrices[i].rows, matrices[i].cols);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  const auto one = [&](std::int64_t i) { orthogonalize_one(matrices[order[static_cast<std::size_t>(i)]], options); };
  const auto count = static_cast<std::int64_t>(matrices.size());
  if (count < 2 * std::int64_t{num_threads()}) {
    for (std::int64_t i = 0; i < count; ++i) one(i);
    return;
  }
  parallel_each(count, 1, one);
}

}  // namespace fp8::kernels
