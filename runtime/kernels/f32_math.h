// SPDX-License-Identifier: Apache-2.0
// f32 products and exponentials, the arithmetic of attention in high precision. Serial: the caller cuts the work.
//
// Numbers, the same bits on every level and whatever the cut:
//   multiply   c(i, j) = (c_old +) ((a(i,0) b(0,j) + a(i,1) b(1,j)) + ...): one chain of f32 products and sums in
//              ascending k, no fused multiply-add. Products of two bf16, f16 or fp8 values are exact.
//   exp_shifted  e^x by n = round(x log2 e), r = x - n ln2 (two parts), a polynomial of degree 7 in r: relative error
//                below 2^-22. -inf gives 0, NaN stays NaN, results below 2^-149 are 0.
#pragma once
#include <cstdint>

namespace fp8::kernels {

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
