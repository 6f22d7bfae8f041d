// SPDX-License-Identifier: Apache-2.0
// Attention of few rows of queries over many keys, as of a new token over its cache: keys and values are read once for
// all rows that share them (grouped queries are rows of one head). T is bf16, f16 or f32; sums run in f32, in ascending
// order, and round() is to T (but p of f16 stays f32). Keys and values may be fp8 codes: what cast.h makes of them in
// T.
//
//   s[j]  = scale * (sum over even d of q[d] k[j, d]  +  sum over odd d of q[d] k[j, d])  + mask[j]
//   p[j]  = round(exp(s[j] - m)),  l = sum of p[j],  o = sum of p[j] v[j, :]     in each chunk of 256 keys, m = max s
//   y     = round( sum of w o / sum of w l ),          over chunks, w = exp(m - M), M = the largest m
//
// Every level gives the same bits, for any number of threads and whatever rows come along. l runs as
// sum_of below. A row whose mask is -inf everywhere gives 0, as in PyTorch; NaN and +inf in a row's scores make the row
// NaN.
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

inline constexpr std::int64_t kMostAttentionRows = 16;    // of more, the products and not the reading take the time
inline constexpr std::int64_t kMostAttentionWidth = 256;  // of a head

/// [batch, heads, rows or keys, width], the last contiguous; the strides of the others in elements, >= 0.
template <class Data>
struct HeadsOf {
  Data* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
};

/// How codes are read: value = round(f32(code) * scale_inv).
struct AttentionCodes {
  Format format = Format::E4M3;
  float scale_inv = 1;
  Dialect dialect = Dialect::ocp;
};

struct AttentionArgs {
  FloatType type = FloatType::BF16;  ///< of all but logsumexp and codes
  std::int64_t batch = 0, heads = 0, rows = 0, keys = 0;
  std::int64_t width = 0;  ///< a multiple of 16 bytes: of 8 (bf16, f16) or 4 (f32) elements
  HeadsOf<const void> q, k, v;
  std::optional<AttentionCodes> k_codes, v_codes;  ///< k, v are bytes then, rows without gaps
  HeadsOf<const void> mask;                        ///< [.., rows, keys]; null: none
  float scale = 1;
  HeadsOf<void> y;           ///< [.., rows, width]
  HeadsOf<float> logsumexp;  ///< [.., rows], where not null: M + log(sum of w l)
};

/// Runs on the threads of the pool with the SIMD level in force; scratch of the calling thread: 4 * batch * heads *
/// (keys / 256 + 2) * rows * (width + 2) bytes, and of each thread, for codes and f16, 2560 * width. Throws
/// std::invalid_argument naming what is wrong with types, sizes, strides and pointers.
void attention(const AttentionArgs& args);

// f32 products and exponentials, the arithmetic of attention in high precision. Serial: the caller cuts the work.
//
// Numbers, the same bits on every level and whatever the cut:
//   multiply   c(i, j) = (c_old +) ((a(i,0) b(0,j) + a(i,1) b(1,j)) + ...): one chain of f32 products and sums in
//              ascending k, no fused multiply-add. Products of two bf16, f16 or fp8 values are exact.
//   exp_shifted  e^x by n = round(x log2 e), r = x - n ln2 (two parts), a polynomial of degree 7 in r: relative error
//                below 2^-22. -inf gives 0, NaN stays NaN, results below 2^-149 are 0.

/// A matrix of f32 anywhere: element (r, c) at data[r * row_stride + c * col_stride]. Swapped strides are a transpose.
struct F32View {
  const float* data = nullptr;
  std::int64_t row_stride = 0, col_stride = 1;
};

/// c [m, n] (+)= a [m, k] . b [k, n]; rows of c are c_stride elements apart and contiguous. With k = 0 the product is
/// 0.
void multiply(const F32View& a, const F32View& b, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
              std::int64_t c_stride, bool accumulate);

/// x[i] = e^(x[i] - shift) for i in [0, n). shift is finite.
void exp_shifted(float* x, std::int64_t n, float shift);

/// max of x[n], NaNs passed over; -infinity for n = 0.
float max_of(const float* x, std::int64_t n);

/// Sum of x[n] in f32: 16 interleaved chains, then those pairwise.
float sum_of(const float* x, std::int64_t n);

}  // namespace fp8::kernels
