// SPDX-License-Identifier: Apache-2.0
// Between attention.cpp and attention_simd.cpp: the products of one head with a chunk of keys. T is f32 or the bits of
// bf16; f16 is widened to f32 before.
#pragma once
#include <cstdint>

namespace fp8::kernels {

inline constexpr std::int64_t kAttentionChunk = 256;  // keys; rows of scores are so far apart

template <class T>
struct AttentionChunk {
  std::int64_t rows = 0, keys = 0, width = 0;  ///< keys <= kAttentionChunk
  const float* q = nullptr;                    ///< [rows, width]
  const T* k = nullptr;                        ///< [keys, width], rows k_stride apart
  std::int64_t k_stride = 0;
  const T* v = nullptr;
  std::int64_t v_stride = 0;
  float* scores = nullptr;  ///< [rows, kAttentionChunk]; what lies behind `keys` of them may be written
  float* out = nullptr;     ///< [rows, width]
};

template <class T>
struct AttentionKernels {
  void (*scores)(const AttentionChunk<T>& chunk);  ///< scores = q k^T
  void (*round)(float* x, std::int64_t n);         ///< to T
  void (*values)(const AttentionChunk<T>& chunk);  ///< out = scores v
  void (*widen)(const std::uint16_t* f16, float* to, std::int64_t n);
};

/// Of the level in force.
template <class T>
const AttentionKernels<T>& attention_kernels_in_force();

}  // namespace fp8::kernels
