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
// Every level gives the same bits, for any number of threads and whatever rows come along. l runs as sum_of of
// f32_math.h. A row whose mask is -inf everywhere gives 0, as in PyTorch; NaN and +inf in a row's scores make the row
// NaN.
#pragma once
#include <cstdint>
#include <optional>

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

}  // namespace fp8::kernels
