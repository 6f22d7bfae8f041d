// SPDX-License-Identifier: Apache-2.0
// Small operations whose bits are the CPU kernel's own (exp, silu, softmax, ...): that kernel, told of the device's
// memory without an alias.
//
//   small_block() (plain.h)  ->  a new tensor, the CPU's loop
//   anything else            ->  unboxed.h
//
// Of a pointwise operation's time the loop takes little, its TensorIterator most: that finds out how to walk the
// operands, which is one row of n elements here. So each thread has one for each operation and dtype, made over two
// elements on the host, and only tells it where to walk.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/plain.h"
#include "fp8/runtime/dispatch/unboxed.h"

namespace fp8::runtime {

/// Structured: at::native::structured_silu_out and its like, TensorIterators of {y, x} with a kernel, impl(). more: the
/// operation's arguments after x.
template <class Structured>
class PreparedUnary final : public Structured {
 public:
  template <class... More>
  explicit PreparedUnary(at::ScalarType type, const More&... more) : x_(on_host(type)), y_(on_host(type)) {
    Structured::meta(x_, more...);
  }
  PreparedUnary(const PreparedUnary&) = delete;
  PreparedUnary& operator=(const PreparedUnary&) = delete;

  /// x, y: [n] of the dtype.
  template <class... More>
  void operator()(std::int64_t n, void* x, void* y, const More&... more) {
    this->shape_[0] = n;
    this->unsafe_replace_operand(0, y);
    this->unsafe_replace_operand(1, x);
    Structured::impl(x_, more..., y_);
  }

 private:
  const at::Tensor& maybe_get_output(std::int64_t) override { return y_; }
  static at::Tensor on_host(at::ScalarType type) {
    return at::Tensor(at::detail::empty_cpu({2}, at::TensorOptions(type)));
  }

  at::Tensor x_, y_;
};

/// Of x with a small_block().
template <class Structured, class... More>
at::Tensor small_unary(const at::Tensor& x, const More&... more) {
  thread_local PreparedUnary<Structured> of_f32(at::kFloat, more...), of_bf16(at::kBFloat16, more...);
  at::Tensor y = empty_plain(x.sizes(), x.scalar_type());
  (x.scalar_type() == at::kFloat ? of_f32 : of_bf16)(x.numel(), plain_data(x), plain_data(y), more...);
  return y;
}

template <class Op, class Structured>
struct UnaryKernel {
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& x) {
    return small_block(x) != nullptr ? small_unary<Structured>(x) : Unboxed<Op, CpuFallback>::call(keys, x);
  }
};

/// Structured: at::native::structured_softmax_cpu_out or the log's; its kernel asks tensors for sizes and memory alone.
template <class Op, class Structured>
struct SoftmaxKernel {
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& x, std::int64_t dim, bool half_to_float) {
    if (half_to_float || small_block(x) == nullptr || dim >= x.dim() || dim < -x.dim())
      return Unboxed<Op, CpuFallback>::call(keys, x, dim, half_to_float);
    struct Kernel final : Structured {
      at::Tensor y;
      const at::Tensor& maybe_get_output(std::int64_t) override { return y; }
    } kernel;
    kernel.y = empty_plain(x.sizes(), x.scalar_type());
    kernel.impl(x, dim, half_to_float, kernel.y);
    return std::move(kernel.y);
  }
};

template <class Op, class Structured>
void add_unary(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN((UnaryKernel<Op, Structured>::call)));
}
template <class Op, class Structured>
void add_softmax(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN((SoftmaxKernel<Op, Structured>::call)));
}

}  // namespace fp8::runtime
