// SPDX-License-Identifier: Apache-2.0
// x . w^T with scales per block, and of high precision activations: what matmul() and linear() (product.h) and the
// operators of ops/gemm/weight_only.h have in common. Not traced; the caller has checked that sizes fit.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"

namespace fp8::runtime {

/// GemmArgs::k_group of a product over k columns in blocks: a block's columns, or all of them where it has no more,
/// filled up to a multiple of 4.
inline std::int64_t columns_of_group(const ScaleLayout& blocks, std::int64_t k) {
  return (std::clamp<std::int64_t>(k, 1, blocks.cols) + 3) / 4 * 4;
}

/// x [..., K] codes with one scale per `w.layout.cols` neighbours of a row, x_scale_inv [rows, groups] f32, or in high
/// precision without (undefined); w [N, K] with blocks, f32; w.power_of_two: x_scale_inv is, too. bias: [N] or
/// undefined.
at::Tensor block_product(const at::Tensor& x, const at::Tensor& x_scale_inv, const Fp8Tensor& w, at::ScalarType out,
                         const at::Tensor& bias);

/// x [..., K] in high precision, w [N, K] with one scale or one per row. bias: [N] or undefined.
at::Tensor weight_only_product(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out, const at::Tensor& bias);

}  // namespace fp8::runtime
