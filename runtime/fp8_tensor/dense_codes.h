// SPDX-License-Identifier: Apache-2.0
// Codes as the kernels of kernels/gemm.h read them, from tensors of any strides.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/scratch.h"

namespace fp8::runtime {

/// The codes of one operand as dense [..., rows, cols] bytes: where they are, turned in scratch (matrices whose columns
/// are contiguous, as transposed ones have), or copied.
class DenseCodes {
 public:
  DenseCodes(const at::Tensor& t, kernels::Scratch& scratch) : DenseCodes(t, CodesReader(t), scratch) {}
  /// by_rows: of t, whose codes lie so.
  DenseCodes(const at::Tensor& t, CodesReader by_rows, kernels::Scratch& scratch);
  ~DenseCodes();
  DenseCodes(const DenseCodes&) = delete;
  DenseCodes& operator=(const DenseCodes&) = delete;

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
  WeightCodes(const at::Tensor& t, bool again, kernels::Scratch& scratch);
  kernels::Layout layout() const { return reader_.layout(); }
  const std::uint8_t* data() const { return dense_.has_value() ? dense_->data() : reader_.packed(); }

 private:
  CodesReader reader_;
  std::optional<DenseCodes> dense_;
};

}  // namespace fp8::runtime
