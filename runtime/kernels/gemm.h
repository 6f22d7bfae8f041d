// SPDX-License-Identifier: Apache-2.0
// y[M, N] = (A[M, K] . W[N, K]^T) * a_scale_inv * w_scale_inv + bias, W in fp8.
//
// Products are exact, sums are f32 in an order that depends on the kernel and on (M, K) but never on the thread count
// (threads split N in whole blocks of 16), one rounding to the output type at the end.
//
// Packed layout (a byte permutation of W, same size; N a multiple of 16, K of 4, zero padded otherwise):
//   byte(n, k) = (n/16)*16*K + (k/4)*64 + ((n%16)/4)*16 + ((k%4)/2)*8 + (n%4)*2 + (k%2)
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

enum class Layout : std::uint8_t { row_major, packed };

/// Activations: high precision as they are (f32 stays f32 unless the level computes in bf16 and type is BF16), or fp8 codes.
enum class ActivationType : std::uint8_t { F32, BF16, F16, E4M3, E5M2 };

struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;                 ///< [m, k]
  ActivationType a_type = ActivationType::F32;
  std::int64_t a_stride = 0;               ///< elements between rows of a, >= k
  const std::uint8_t* w = nullptr;         ///< [n, k] codes, row-major dense or packed
  Format w_format = Format::E4M3;
  Layout w_layout = Layout::row_major;
  /// Dequantization multipliers; nullptr means 1. Strides 0 (one value) or 1 (per row of a / per output channel).
  const float* a_scale_inv = nullptr;
  std::int64_t a_scale_stride = 0;
  const float* w_scale_inv = nullptr;
  std::int64_t w_scale_stride = 0;
  const void* bias = nullptr;              ///< [n] or nullptr, unscaled
  FloatType bias_type = FloatType::F32;
  void* y = nullptr;                       ///< [m, n]
  FloatType y_type = FloatType::F32;
  std::int64_t y_stride = 0;               ///< elements between rows of y, >= n
  bool accumulate = false;                 ///< add to what y holds (in f32, before the one rounding)
};

void gemm(const GemmArgs& args);

/// Bytes of the packed form of an [n, k] weight.
std::int64_t packed_bytes(std::int64_t n, std::int64_t k);
void pack_weight(const std::uint8_t* row_major, std::int64_t n, std::int64_t k, std::uint8_t* packed);
void unpack_weight(const std::uint8_t* packed, std::int64_t n, std::int64_t k, std::uint8_t* row_major);

/// out[c, r] = in[r, c] for a dense byte matrix (an fp8 operand that arrives as [K, N]).
void transpose_bytes(const std::uint8_t* in, std::int64_t rows, std::int64_t cols, std::uint8_t* out);

}  // namespace fp8::kernels
