// SPDX-License-Identifier: Apache-2.0
// y[m, n] = round_bf16( f32(sum over k of a[m, k] * w[n, k]) + bias[n] ), all bf16: products of one or two rows with a
// large weight, which take as long as reading the weight does (the head of a language model, for one token).
//
// Numbers, the same on every level: products are exact, and 32 sums run in f32 with fused multiply-adds, sum j over
// k = j, j + 32, j + 64 ... in that order. They are added as
//   s[i] = sum[2i] + sum[2i + 1]  (16),   then s[i] += s[i + 8], s[i + 4], s[i + 2], s[i + 1]
// so an output's bits depend on its row of a and its row of w alone. |error of sum| <= (k/32 + 6) * 2^-24 * sum |a w|.
#pragma once
#include <cstdint>
#include <span>

namespace fp8::kernels {

inline constexpr std::int64_t kMostGemvRows = 2;  // of three the products, no longer the reading, take the time

struct GemvArgs {
  std::int64_t m = 0, n = 0, k = 0;  ///< m <= kMostGemvRows
  const std::uint16_t* a = nullptr;  ///< [m, k] bits of bf16, rows a_stride >= k elements apart
  std::int64_t a_stride = 0;
  const std::uint16_t* w = nullptr;  ///< [n, k], rows w_stride >= k elements apart
  std::int64_t w_stride = 0;
  const std::uint16_t* bias = nullptr;  ///< [n] or nullptr
  std::uint16_t* y = nullptr;           ///< [m, n], rows y_stride >= n elements apart
  std::int64_t y_stride = 0;
};

/// Runs on the threads of the pool with the SIMD level in force, and reads w once. Scratch per calling thread:
/// 2 * m * k bytes, where a's rows do not begin on cache lines. Throws std::invalid_argument naming what is wrong with
/// sizes, strides and pointers.
void gemv(const GemvArgs& args);
/// Several products of the same a (m, k, a and a_stride are the first's, else std::invalid_argument), whose y do not
/// overlap: the same bits, and all threads work on all.
void gemv_together(std::span<const GemvArgs> products);

}  // namespace fp8::kernels
