// SPDX-License-Identifier: Apache-2.0
// Products of codes whose scales lie along rows and columns of the result: what matmul() (product.h) and
// hpu::fp8_gemm_v2 have in common. Not traced.
#pragma once

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::runtime {

/// Operands and sizes of a product, 1-D operands as matrices of one row or column.
struct GemmShape {
  /// Throws c10::Error, with `op` in front, for dtypes that are not fp8 and inner dimensions that differ.
  GemmShape(const char* op, const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b);

  at::Tensor a, bt;  ///< [..., M, K] and [..., N, K], any strides
  std::int64_t m, n, k;
  std::vector<std::int64_t> batch;  ///< broadcast batch dimensions
  std::vector<std::int64_t> sizes;  ///< of the result

  /// M in all batches.
  std::int64_t all_rows() const;
};

/// The result of the sums: y = sum * a_scale_inv * w_scale_inv + bias + add, rounded once.
struct GemmTerms {
  std::span<const float> a_scale_inv, w_scale_inv;  ///< none, one, or all_rows() and N of them
  at::Tensor bias, add;                             ///< [N] and the result's sizes; undefined: none
  kernels::Dialect dialect = kernels::Dialect::ocp;
  bool reused = false;  ///< of b: Fp8Tensor::reused
};

at::Tensor gemm(const GemmShape& shape, at::ScalarType out, const GemmTerms& terms);

/// For callers that fill kernels::GemmArgs. bias: contiguous, or undefined. Throws c10::Error for other sizes and
/// dtypes.
void set_bias(kernels::GemmArgs& args, const at::Tensor& bias, const char* op);

// Codes as the kernels of kernels/gemm.h read them, from tensors of any strides.

/// The codes of one operand as dense [..., rows, cols] bytes: where they are, transposed in scratch (matrices whose
/// columns are contiguous, as transposed ones have), or copied.
class DenseCodes {
 public:
  DenseCodes(const at::Tensor& t, kernels::Scratch& scratch) : DenseCodes(t, CodesReader(t), scratch) {}
  /// by_rows: of t, whose codes lie so.
  DenseCodes(const at::Tensor& t, CodesReader by_rows, kernels::Scratch& scratch);
  ~DenseCodes();
  DenseCodes& operator=(DenseCodes&&) = delete;

  const std::uint8_t* data() const { return data_; }

 private:
  const std::uint8_t* transposed();

  CodesReader reader_;
  at::Tensor tensor_;
  kernels::Scratch& scratch_;
  const std::uint8_t* data_;
};

/// A weight of a product, packed where it lies so in its memory.
class WeightCodes {
 public:
  WeightCodes(const at::Tensor& t, bool reused, kernels::Scratch& scratch);
  kernels::Layout layout() const { return reader_.layout(); }
  const std::uint8_t* data() const { return dense_.has_value() ? dense_->data() : reader_.packed(); }

 private:
  CodesReader reader_;
  std::optional<DenseCodes> dense_;
};

// x . w^T with scales per block, and of high precision activations: what matmul() and linear() (product.h) and the
// operators of ops/gemm/gemm.h have in common. Not traced; the caller has checked that sizes fit.

/// GemmArgs::blocks of a product over k columns in blocks: a block's columns, or all of them where it has no more,
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
