// SPDX-License-Identifier: Apache-2.0
// The next token from a row of logits, read where they lie and in their dtype:
//
//   greedy     the first of the largest, found in the pass that looks for NaN and infinities
//   sampling   w[i] = exp((logits[i] - largest) / temperature), f64;  the first i with w[0] + .. + w[i] > u * sum of w
//
// u is uniform in [0, 1), of 53 of the generator's bits; sums run in ascending order: a seed gives the same text
// whatever the number of threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <random>

#include "fp8/runtime/kernels/format.h"

namespace fp8::commands {

/// n >= 1 logits in a row.
struct LogitsRow {
  const void* data = nullptr;
  kernels::FloatType type = kernels::FloatType::F32;
  std::int64_t n = 0;
};

struct LargestLogit {
  std::int64_t index = 0;
  float value = 0;
};

/// Nothing where one is NaN or infinite.
std::optional<LargestLogit> largest_of(const LogitsRow& logits);

/// Draws at a temperature > 0. Rows of one length share the memory for w.
class TokenDraw {
 public:
  explicit TokenDraw(double temperature) : temperature_(temperature) {}
  /// largest: what largest_of() found.
  std::int64_t draw(const LogitsRow& logits, float largest, std::mt19937_64& generator);

 private:
  double temperature_;
  at::Tensor weights_;  ///< w, f64 [n]
};

}  // namespace fp8::commands
