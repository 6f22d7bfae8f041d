// SPDX-License-Identifier: Apache-2.0
// What attention_forward.cpp and attention_backward.cpp share: conversions of rows, and the scores of a block of
// queries.
#pragma once
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "fp8/runtime/ops/attention/attention.h"

namespace fp8::runtime::ops {

/// Elements [first, first + n) of a contiguous tensor (fp8: the codes' values as `dialect` reads them) as f32:
/// `scratch`, or the memory itself.
const float* as_f32(const at::Tensor& t, std::int64_t first, std::int64_t n, std::vector<float>& scratch,
                    kernels::Dialect dialect = kernels::Dialect::ocp);

/// f32 -> f32, bf16 or f16 at elements [first, first + n) of a contiguous tensor, RNE.
void store_f32(const float* x, std::int64_t n, const at::Tensor& t, std::int64_t first);

/// A pointer to element `first` of a contiguous tensor, to write or to read.
std::uint8_t* bytes_at(const at::Tensor& t, std::int64_t first);
const std::uint8_t* const_bytes_at(const at::Tensor& t, std::int64_t first);

/// The largest of magnitudes found by several threads; NaN wins.
class SharedAmax {
 public:
  void add(float amax);
  float value() const { return std::bit_cast<float>(bits_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

/// Scores of rows [row, row + rows) against keys [first, last), rows `last - first` apart; scratch of its own, so one
/// per thread. Keeps K in f32 while consecutive calls share it.
class ScoreBlock {
 public:
  explicit ScoreBlock(const AttentionInputs& inputs) : in_(inputs) {}
  void compute(std::int64_t head, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last,
               float* scores);

 private:
  const AttentionInputs& in_;
  std::int64_t k_index_ = -1;
  std::vector<float> q_, k_;
  const float* k_rows_ = nullptr;
};

/// Rows of queries worked on together: 64, fewer where S is so long that their scores would pass 4 MiB.
std::int64_t block_rows(std::int64_t keys);

}  // namespace fp8::runtime::ops
