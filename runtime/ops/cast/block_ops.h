// SPDX-License-Identifier: Apache-2.0
// Block-scaled fp8 tensors: quantization of a matrix with one scale per tile, and back. The formulas stand in
// runtime/kernels/block_cast.h; results depend on neither threads nor SIMD level.
//
//   cur = quantize_blocks(x, at::kFloat8_e4m3fn, kernels::Dialect::ocp, 1, 128, true)     1 x 128, power-of-two scales
//   mx  = quantize_mx(x, at::kFloat8_e4m3fn, kernels::Dialect::ocp, MxDirection::rowwise) 1 x 32, E8M0 scales
//   y   = dequantize_blocks(cur, at::kBFloat16)
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::runtime::ops {

/// A matrix [R, C] as codes with a grid of scales.
struct BlockQuantized {
  at::Tensor codes;      ///< [R, C], float8_e4m3fn or float8_e5m2, contiguous
  at::Tensor scale_inv;  ///< [ceil(R / block_rows), ceil(C / block_cols)], f32, or float8_e8m0fnu (MX); same device
  std::int64_t block_rows = 1, block_cols = 1;
};

/// x: [R, C], f32, bf16 or f16, on hpu or cpu, any strides (rows that are not contiguous are copied first). `fp8`:
/// float8_e4m3fn or float8_e5m2. With `stochastic`, codes are rounded with a seed from the default generator of the
/// CPU, which torch::manual_seed fixes. Throws c10::Error for other dtypes, dimensions and devices and for block sizes
/// below 1, std::invalid_argument for a negative amax_epsilon. No autograd history.
BlockQuantized quantize_blocks(const at::Tensor& x, at::ScalarType fp8, kernels::Dialect dialect,
                               std::int64_t block_rows, std::int64_t block_cols, bool power_of_two,
                               float amax_epsilon = 0.0f, bool stochastic = false);

/// Blocks of 1 x 32 (along the rows: for products that sum over columns) or 32 x 1.
enum class MxDirection : std::uint8_t { rowwise, columnwise };

/// As quantize_blocks, with E8M0 scales.
BlockQuantized quantize_mx(const at::Tensor& x, at::ScalarType fp8, kernels::Dialect dialect, MxDirection direction,
                           bool stochastic = false);

/// codes * scale_inv as `out` (f32, bf16 or f16; the f32 product rounded once), [R, C] on the codes' device. scale_inv:
/// f32, float8_e8m0fnu, or uint8, which is taken for E8M0. Throws c10::Error where the grid does not fit the codes.
at::Tensor dequantize_blocks(const BlockQuantized& quantized, at::ScalarType out);

}  // namespace fp8::runtime::ops
