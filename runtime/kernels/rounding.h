// SPDX-License-Identifier: Apache-2.0
// Rounding a weight so that what it computes keeps its value (GPTQ: Frantar et al., arXiv 2210.17323): columns are
// rounded one after the other, and each error is made good by the columns that are still to come.
//
//   G      sum over tokens of x x^T, [n, n]                   the inputs of the weight
//   A      P G P^T + damping I                                columns sorted, the last is rounded first
//   A      U^T U, U upper triangular                          f64, F[k, l] = U[k, l] / U[k, k] as f32
//   for k = n-1 .. 0      w'_k = w_k + sum over l > k of e_l F[k, l]
//                         r_k = RNE(clamp(f32(w'_k * scale_k))),  e_k = w_k - r_k * scale_inv_k
//
// The paper inverts G and sweeps over the factor of the inverse; this is the same sweep in exact arithmetic, without an
// inverse: given e_l for l > k, w'_k is where the least of e A e^T over e_0 .. e_k lies. So
// e A e^T = sum over k of (U[k, k] (w'_k - q_k))^2.
//
// Matrices are dense and row-major; of symmetric ones the upper half is read and written. All run on the threads of the
// pool: the same bits on every level and any number of threads. Throw std::invalid_argument for sizes that are negative
// or do not fit, and missing pointers.
#pragma once
#include <span>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// gram [n, n] += x^T x, x [tokens, n].
void add_gram(const float* x, std::int64_t tokens, std::int64_t n, float* gram);

/// A permuted, damped copy: out[i, j] = gram[order[i], order[j]] + (i == j ? damping : 0), for i <= j.
void permute_gram(const float* gram, std::span<const std::int64_t> order, double damping, double* out);

/// a [n, n] becomes U where it can; factor[k, l] = U[k, l] / U[k, k] for l > k, the rest of it is not written. False,
/// with `a` spoilt and the factor as it was, where a is not positive definite or not finite.
bool factor_gram(double* a, std::int64_t n, float* factor);

/// A weight's rows with the scales that are fixed for it.
struct CompensatedRounding {
  std::int64_t rows = 0, cols = 0;
  const float* w = nullptr;       ///< [rows, cols], columns in the factor's order
  const float* factor = nullptr;  ///< [cols, cols], of factor_gram()
  Format format = Format::E4M3;
  float max = 448.0f;  ///< where it saturates, a value of the format
  /// scale and scale_inv of element (row, col): [groups, rows] at group[col] * rows + row.
  const float *scale = nullptr, *scale_inv = nullptr;
  const std::int32_t* group = nullptr;  ///< [cols]; null: all of group 0
  float* rounded = nullptr;             ///< [rows, cols]: r, values of the format; each is rounded to itself by a cast
  float* error = nullptr;               ///< [rows, cols]: e
};
void round_compensated(const CompensatedRounding& args);

/// Sum over the rows of e G e^T; e [rows, n].
double quadratic_form(const float* e, std::int64_t rows, const float* gram, std::int64_t n);

}  // namespace fp8::kernels
