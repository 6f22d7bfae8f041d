// SPDX-License-Identifier: Apache-2.0
// Pointwise operations that need no CPU kernel: small dense tensors of f32 or bf16 and one shape, or one such tensor
// and a number, a row for all of its rows or a number for each, are computed at once (kernels/pointwise.h), without an
// alias and without TensorIterator.
//
//   small_block() (unboxed.h), no NaN among the results  ->  here
//   anything else                                      ->  unboxed.h
//
// The bits are the CPU kernels': IEEE 754 leaves no choice but a NaN's. A number is rounded to the tensor's dtype by
// add and sub, and is f32 to mul and div; mul_(Scalar) alone rounds it too, and so has no row.
#pragma once
#include <c10/core/Scalar.h>

#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/kernels/optim/pointwise.h"

namespace fp8::runtime {

/// The operands of one call: a op b, or a op number.
struct PointwiseOperands {
  const at::Tensor& a;
  const at::Tensor* b = nullptr;  ///< null, and no number: an operation of one operand
  const c10::Scalar* number = nullptr;
  const c10::Scalar* alpha = nullptr;  ///< the factor of b in add and sub; only 1 is computed here

  explicit PointwiseOperands(const at::Tensor& a) : a(a) {}
  PointwiseOperands(const at::Tensor& a, const at::Tensor& b) : a(a), b(&b) {}
  PointwiseOperands(const at::Tensor& a, const at::Tensor& b, const c10::Scalar& alpha) : a(a), b(&b), alpha(&alpha) {}
  PointwiseOperands(const at::Tensor& a, const c10::Scalar& number) : a(a), number(&number) {}
  PointwiseOperands(const at::Tensor& a, const c10::Scalar& number, const c10::Scalar& alpha)
      : a(a), number(&number), alpha(&alpha) {}
};

/// The result, or an undefined tensor where the call is not one of the above.
at::Tensor small_pointwise(kernels::Pointwise op, const PointwiseOperands& operands);
/// The result into a; false, with a as it was, for other calls.
bool small_pointwise_(kernels::Pointwise op, const PointwiseOperands& operands);

/// mask ? a : b of plain tensors of one shape, a and b of one dtype of 2, 4 or 8 bytes; undefined for other calls.
at::Tensor small_where(const at::Tensor& mask, const at::Tensor& a, const at::Tensor& b);
/// mask ? number : x likewise, x of f32 or bf16.
at::Tensor small_masked_fill(const at::Tensor& x, const at::Tensor& mask, const c10::Scalar& number);

/// copy_ between two such tensors of one shape and one dtype (any; of 2, 4 or 8 bytes `from` may have any strides), or
/// f32 and bf16; else false, and nothing is copied.
bool small_copy(const at::Tensor& to, const at::Tensor& from);

/// The kernel of Op. Boxed: what takes calls that unboxed.h doesn't take either.
template <kernels::Pointwise kOp, class Op, class Boxed, class Signature = typename Op::schema>
struct PointwiseKernel;

template <kernels::Pointwise kOp, class Op, class Boxed, class R, class... Args>
struct PointwiseKernel<kOp, Op, Boxed, R(Args...)> {
  static R call(c10::DispatchKeySet keys, Args... args) {
    if constexpr (std::is_reference_v<R>) {
      if (small_pointwise_(kOp, PointwiseOperands(args...))) return std::get<0>(std::tie(args...));
    } else {
      at::Tensor y = small_pointwise(kOp, PointwiseOperands(args...));
      if (y.defined()) return y;
    }
    return Unboxed<Op, Boxed>::call(keys, args...);
  }
};

template <kernels::Pointwise kOp, class Op, class Boxed>
void add_pointwise(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN((PointwiseKernel<kOp, Op, Boxed>::call)));
}

}  // namespace fp8::runtime
