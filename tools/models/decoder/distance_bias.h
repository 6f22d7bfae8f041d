// SPDX-License-Identifier: Apache-2.0
// T5's biases of scores by distance (arXiv:1910.10683): a table [buckets, heads], which bucket a key is in says how far
// it is in front of the query.
//
//   n buckets (of an encoder: half of them; the other half are for keys behind the query), e = n / 2, distance d
//   d < e: bucket d;   else: e + floor(ln(d / e) / ln(reach / e) (n - e)), at most n - 1
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/tools/models/decoder/attention.h"
#include "fp8/tools/models/decoder/description.h"

namespace fp8::models {

/// Of the queries at positions [first, first + rows) and the keys at [0, first + rows): [rows, columns] int64 on the
/// CPU. both_ways: as in an encoder.
at::Tensor distance_buckets(const BucketSpec& spec, std::int64_t first, std::int64_t rows, bool both_ways);

/// bias [rows, columns, A] -> [1 or B, A, rows, columns], -inf where `sight`, which begins in column 0, does not see.
at::Tensor seen_bias(const at::Tensor& bias, const Sight& sight);

}  // namespace fp8::models
