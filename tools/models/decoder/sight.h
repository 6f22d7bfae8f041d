// SPDX-License-Identifier: Apache-2.0
// What the tokens of one forward may see of each other and of a cache.
//
//   row i sees column j   where j <= i, j >= start of its sequence, i - j < window, and both are in one chunk
//
// Rows and columns are places in the cache; positions count from a sequence's start.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "fp8/tools/models/decoder/attention.h"

namespace fp8::models {

/// The rows of one forward.
struct Rows {
  std::int64_t first = 0, count = 0;      ///< of the cache's columns
  std::vector<std::int64_t> starts = {};  ///< of each sequence; empty: all 0
  bool causal = true;                     ///< else a row sees columns after it too, in a window as far as before it

  /// Positions [1 or B, count], f32 on the CPU.
  at::Tensor positions() const;
  /// The largest position + 1.
  std::int64_t in_use() const;
};

/// Of layers of one kind. device: of the mask.
Sight sight_of(const Rows& rows, const LayerKind& kind, at::Device device);

}  // namespace fp8::models
