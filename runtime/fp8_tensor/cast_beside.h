// SPDX-License-Identifier: Apache-2.0
// The cast of a tensor by the kernel that writes it, row by row (kernels/row_cast.h), where it's known what the next
// product will cast it to: no pass of its own over memory.
//
//   const CastBeside cast(y, next);   room for the codes
//   args.cast = cast.rows();          kernels::rms_norm(args) writes y and its codes
//   cast.keep();                      the product's cast_once(y, y, *next) takes them
//
// The codes are those of quantize(y, *next), to the bit: whoever asks for another cast of y makes it, as without.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/kernels/row_cast.h"

namespace fp8::runtime {

/// What whoever takes a tensor will cast it to (linear_together.h, input_cast); none: not known, or to nothing.
using NextCast = std::optional<CastSpec>;

class CastBeside {
 public:
  /// y: [..., n], contiguous, bf16, f16 or f32. No cast where `next` is none, or not one of rows (given: one scale;
  /// amax_over_max: one per row), or y's casts can't be kept (cast_once.h).
  CastBeside(const at::Tensor& y, const NextCast& next);
  /// Valid while this lives.
  kernels::RowCast rows() const;
  /// Once the kernel has run.
  void keep() const;

 private:
  const at::Tensor& y_;
  const CastSpec* spec_ = nullptr;  ///< null: no cast
  Fp8Tensor result_;
};

}  // namespace fp8::runtime
