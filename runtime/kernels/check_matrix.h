// SPDX-License-Identifier: Apache-2.0
// The one check of sizes that every kernel of this folder makes: what passes it can be indexed in 64 bits.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fp8::kernels {

/// Throws std::invalid_argument unless 0 <= rows, cols; row_stride >= cols where there are two rows; fewer than 2^60
/// elements.
inline void check_matrix(const char* what, std::int64_t rows, std::int64_t cols, std::int64_t row_stride) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  if (rows < 0 || cols < 0) {
    throw std::invalid_argument(std::string(what) + ": found a matrix of " + std::to_string(rows) + " x " +
                                std::to_string(cols) + ", sizes must not be negative");
  }
  if (rows > 1 && row_stride < cols) {
    throw std::invalid_argument(std::string(what) + ": row_stride is " + std::to_string(row_stride) +
                                ", must be at least cols = " + std::to_string(cols));
  }
  const std::int64_t pitch = rows > 1 && row_stride > cols ? row_stride : cols;
  if (rows > 0 && pitch > kMost / rows) {
    throw std::invalid_argument(std::string(what) + ": found a matrix of " + std::to_string(rows) + " x " +
                                std::to_string(pitch) + " elements, allowed are 2^60");
  }
}

}  // namespace fp8::kernels
