// SPDX-License-Identifier: Apache-2.0
// The nearest thing to an orthogonal matrix that five products give: Muon's Newton-Schulz iteration.
//
//   X_0 = G / max(|G|, eps)     A = X X^T     X <- (a I + b A + c A A) X       a 3.4445, b -4.7750, c 2.0315
//
// Every step multiplies X from one side with a polynomial of A, and all polynomials of A commute. So the steps work on
// the small side's Gram matrix alone, and X meets the product of the polynomials once, at the end:
//
//   P = a I + b A + c A A       Q <- Q P       A <- P A P       result Q X_0
//
// which for 192 x 512 is 0.5 of the multiplications; all but the last product are symmetric, and only their lower
// halves are computed. f32 throughout (the published code is bf16). Bits do not depend on the threads or the
// instruction set.
#pragma once
#include <cstdint>
#include <span>

namespace fp8::kernels {

/// The published polynomial.
struct NewtonSchulz {
  float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  int steps = 5;      ///< 1 to 99
  float eps = 1e-7f;  ///< least |G| to divide by
};

/// One dense row-major f32 matrix, replaced by the result.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, cols = 0;
};

/// Matrices are worked on side by side where there are enough of them, else the threads share each product. Scratch per
/// matrix at work: 5 times the square of its smaller side and one copy of it. Throws std::invalid_argument for negative
/// sizes, null data of non-empty matrices, and steps out of range.
void orthogonalize(std::span<const Matrix> matrices, const NewtonSchulz& options);

}  // namespace fp8::kernels
