// SPDX-License-Identifier: Apache-2.0
// The arithmetic of optimizers: many tensors in one call, one pass over the memory of each, all threads.
//
//   Tensors are cut into chunks of kOptimChunk elements. A chunk is brought to f32 (in place where it is f32), worked
//   on while it is in cache, and rounded back to nearest even. Every element is a function of its own values, every sum
//   one of fixed partial sums: the same bits for any number of threads and any instruction set. No fused multiply-adds.
//
// All functions throw std::invalid_argument for negative or unequal lengths, null data of non-empty arrays, fp8 where
// it is not allowed, and a scale that is missing or not a positive number. Arrays that are written must not overlap
// others.
#pragma once
#include <span>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

inline constexpr std::int64_t kOptimChunk = 2048;

/// A dense array of f32, bf16 or f16; of fp8 codes only where a function says so.
struct Array {
  void* data = nullptr;
  std::int64_t n = 0;
  Storage type = Storage::F32;
};

/// y = a * y + b * x (two products, one sum). y and x have the same length; with x.data null y = a * y.
struct ScaleAdd {
  Array y, x;
  float a = 1, b = 0;
};
void scale_add(std::span<const ScaleAdd> work);

/// out[i] = sum of squares of x[i], in f64: chunk by chunk 16 interleaved sums, added in a fixed order.
void sums_of_squares(std::span<const Array> x, double* out);

/// The factors of Adam that differ between two steps, already in f32.
///
///   m = beta1 * m + rest1 * g
///   v = beta2 * v + rest2 * g * g
///   w = w * decay + neg_step * (m / (sqrt(v) * root_scale + eps))
struct AdamFactors {
  float beta1 = 0, rest1 = 1, beta2 = 0, rest2 = 1;  ///< rest = 1 - beta, taken before rounding to f32
  float eps = 0, root_scale = 1;
  float decay = 1, neg_step = 0;
};

/// One parameter of Adam. All arrays have n elements. A moment in fp8 is code / scale[0], and scale[0] is renewed by
/// the step: 2^floor(log2(max / amax)) of the new moment, max of the dialect; kept where the moment is all zero, or has
/// a NaN or an infinity. Codes are rounded stochastically with bits from (seed, element).
struct AdamTensor {
  Array weight, grad;                            ///< f32, bf16 or f16
  Array m, v;                                    ///< any storage
  float *m_scale = nullptr, *v_scale = nullptr;  ///< one value each; only for fp8 moments
  AdamFactors factors;
  std::uint64_t seed = 0;
};
void adam_step(std::span<const AdamTensor> work, Dialect dialect);

/// The scale above; `old` where amax gives none. Exponents stay within [-126, 126], so that the reciprocal is normal
/// too.
float moment_scale(float amax, Format format, Dialect dialect, float old);

/// One parameter of SGD; d = g + weight_decay * w, then with momentum (buffer.data not null)
///   buffer = first ? d : momentum * buffer + rest * d      rest = 1 - dampening
///   d      = nesterov ? d + momentum * buffer : buffer
/// and w = w + neg_lr * d.
struct SgdTensor {
  Array weight, grad, buffer;  ///< f32, bf16 or f16
  float weight_decay = 0, momentum = 0, rest = 1, neg_lr = 0;
  bool nesterov = false, first = false;
};
void sgd_step(std::span<const SgdTensor> work);

/// One parameter of LAMB's first phase:
///   g' = g / clip;  m = beta1 * m + beta3 * g';  v = beta2 * v + rest2 * g' * g'
///   step = (m / correction1) / (sqrt(v / correction2) + eps) + weight_decay * w
/// and the sums of squares of w and of step.
struct LambTensor {
  Array weight, grad, m, v, step;  ///< f32, bf16 or f16
  float clip = 1, beta1 = 0, beta3 = 1, beta2 = 0, rest2 = 1, eps = 0;
  float correction1 = 1, correction2 = 1, weight_decay = 0;
};
/// squares: per tensor {sum of w^2, sum of step^2}.
void lamb_direction(std::span<const LambTensor> work, double (*squares)[2]);

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
