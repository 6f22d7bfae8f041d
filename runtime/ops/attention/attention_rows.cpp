// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/attention_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/f32_math.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::runtime::ops {

std::uint8_t* bytes_at(const at::Tensor& t, std::int64_t first) {
  return static_cast<std::uint8_t*>(t.mutable_data_ptr()) + first * static_cast<std::int64_t>(t.element_size());
}

const std::uint8_t* const_bytes_at(const at::Tensor& t, std::int64_t first) {
  return static_cast<const std::uint8_t*>(t.const_data_ptr()) + first * static_cast<std::int64_t>(t.element_size());
}

const float* as_f32(const at::Tensor& t, std::int64_t first, std::int64_t n, std::vector<float>& scratch,
                    kernels::Dialect dialect) {
  const void* data = const_bytes_at(t, first);
  if (t.scalar_type() == at::kFloat) return static_cast<const float*>(data);
  scratch.resize(static_cast<std::size_t>(n));
  if (is_fp8(t.scalar_type())) {
    const float* table = kernels::decode_table(format_of(t.scalar_type()), dialect);
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = table[static_cast<const std::uint8_t*>(data)[i]];
  } else if (t.scalar_type() == at::kBFloat16) {
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = kernels::bf16_to_f32(static_cast<const std::uint16_t*>(data)[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) scratch[i] = kernels::f16_to_f32(static_cast<const std::uint16_t*>(data)[i]);
  }
  return scratch.data();
}

void store_f32(const float* x, std::int64_t n, const at::Tensor& t, std::int64_t first) {
  if (n == 0) return;  // no memory to point at
  void* data = bytes_at(t, first);
  if (t.scalar_type() == at::kFloat) {
    std::memcpy(data, x, static_cast<std::size_t>(n) * sizeof(float));
  } else if (t.scalar_type() == at::kBFloat16) {
    for (std::int64_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(data)[i] = kernels::f32_to_bf16(x[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(data)[i] = kernels::f32_to_f16(x[i]);
  }
}

void SharedAmax::add(float amax) {
  const std::uint32_t bits = kernels::bits_of(amax) & 0x7FFFFFFFu;
  std::uint32_t seen = bits_.load(std::memory_order_relaxed);
  while (bits > seen && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

std::int64_t block_rows(std::int64_t keys) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 20) / std::max<std::int64_t>(keys, 1), 6, 64);
}

void ScoreBlock::compute(std::int64_t head, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last,
                         float* scores) {
  const Heads& h = in_.heads;
  const std::int64_t n = last - first, q0 = (h.q[static_cast<std::size_t>(head)] * h.queries + row) * h.depth;
  const std::int64_t k_index = h.k[static_cast<std::size_t>(head)], k0 = k_index * h.keys * h.depth;
  if (is_fp8(in_.q.scalar_type())) {
    kernels::GemmArgs g;
    g.m = rows;
    g.n = n;
    g.k = h.depth;
    g.a = const_bytes_at(in_.q, q0);
    g.a_type = storage_of(in_.q.scalar_type());
    g.a_stride = h.depth;
    g.w = const_bytes_at(in_.k, k0 + first * h.depth);
    g.w_format = format_of(in_.k.scalar_type());
    g.y = scores;
    g.y_stride = n;
    g.dialect = in_.dialect;
    kernels::gemm(g);
  } else {
    if (k_index != k_index_) k_rows_ = as_f32(in_.k, k0, h.keys * h.depth, k_, in_.dialect);
    k_index_ = k_index;
    const float* q = as_f32(in_.q, q0, rows * h.depth, q_, in_.dialect);
    kernels::multiply({q, h.depth, 1}, {k_rows_ + first * h.depth, 1, h.depth}, rows, n, h.depth, scores, n, false);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* s = scores + r * n;
    for (std::int64_t j = 0; j < n; ++j) s[j] *= in_.score_factor;
    in_.mask.apply(head, row + r, first, n, s);
    const auto [begin, end] = in_.visible.keys(head, row + r);
    std::fill(s, s + std::clamp<std::int64_t>(begin - first, 0, n), -std::numeric_limits<float>::infinity());
    std::fill(s + std::clamp<std::int64_t>(end - first, 0, n), s + n, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace fp8::runtime::ops
