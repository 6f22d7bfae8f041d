// SPDX-License-Identifier: Apache-2.0
// The fallback's common case without a stack, for the operations that a model calls most:
//
//   dense tensors of one hpu device, no float8, no tag, no trace  ->  aliases, the CPU's kernel, adopt()
//   anything else                                                 ->  the boxed kernel, which knows all cases
//
// CPU tensors of dimension 0 are numbers, as in the fallback.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/call_alias.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// The operands of one call, seen one after the other.
class PlainOperands {
 public:
  bool take(const at::Tensor& t) {
    if (!t.defined()) return false;
    if (t.device().type() != c10::kHPU) return t.device().is_cpu() && t.dim() == 0;
    const Block* block = block_of(t);
    if (block == nullptr || block->tag || c10::isFloat8Type(t.scalar_type())) return false;
    if (device_ >= 0 && device_ != block->device) return false;
    device_ = block->device;
    return true;
  }
  bool take(const at::ITensorListRef& list) {
    for (const at::Tensor& t : list)
      if (!take(t)) return false;
    return true;
  }
  bool take(const std::optional<at::Tensor>& t) { return !t.has_value() || !t->defined() || take(*t); }
  template <class T>
  bool take(const T&) {
    return true;
  }
  c10::DeviceIndex device() const { return device_; }  ///< -1: all were numbers

 private:
  c10::DeviceIndex device_ = -1;
};

/// What the CPU's kernel gets for an argument, as long as the call lasts: tensors' aliases, all else as it is.
template <class T>
struct CpuArgument {
  const T& value;
  explicit CpuArgument(const T& value) : value(value) {}
  const T& get() { return value; }
};
template <>
struct CpuArgument<at::Tensor> : CallAlias {
  using CallAlias::CallAlias;
};
template <>
struct CpuArgument<std::optional<at::Tensor>> {
  std::optional<at::Tensor> alias;
  explicit CpuArgument(const std::optional<at::Tensor>& t) : alias(t) {
    if (alias.has_value()) alias = cpu_alias(*alias);
  }
  const std::optional<at::Tensor>& get() { return alias; }
};
template <>
struct CpuArgument<at::ITensorListRef> {
  std::vector<at::Tensor> aliases;
  explicit CpuArgument(const at::ITensorListRef& list) {
    aliases.reserve(list.size());
    for (const at::Tensor& t : list) aliases.push_back(cpu_alias(t));
  }
  const std::vector<at::Tensor>& get() { return aliases; }
};

inline void adopt_results(const at::Tensor& fresh, c10::DeviceIndex device) { adopt(fresh, device); }
template <class... T>
void adopt_results(const std::tuple<T...>& fresh, c10::DeviceIndex device) {
  std::apply([device](const T&... t) { (adopt(t, device), ...); }, fresh);
}

/// Op: at::_ops::add_Tensor and its like, with fresh tensors or its first argument (in place) for a result. Boxed:
/// what takes all other calls, CpuFallback or its like.
template <class Op, class Boxed, class Signature = typename Op::schema>
struct Unboxed;

template <class Op, class Boxed, class R, class... Args>
struct Unboxed<Op, Boxed, R(Args...)> {
  static R call(c10::DispatchKeySet keys, Args... args) {
    PlainOperands operands;
    if (leaves_heard() || !(operands.take(args) && ...) || operands.device() < 0) return boxed(keys, args...);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
    const HostAllocationsFor within_limit(operands.device(), Op::name);
    // The aliases are held until the result is adopted: its memory is none of theirs.
    std::tuple<CpuArgument<std::remove_cvref_t<Args>>...> aliases(args...);
    const auto call = [](auto&... alias) -> decltype(auto) {
      return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), alias.get()...);
    };
    if constexpr (std::is_reference_v<R>) {
      std::apply(call, aliases);
      return std::get<0>(std::tie(args...));
    } else {
      R result = std::apply(call, aliases);
      adopt_results(result, operands.device());
      return result;
    }
  }

 private:
  static R boxed(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const Boxed kernel(op.schema());
    torch::jit::Stack stack = c10::impl::boxArgs<Args...>(args...);
    kernel(op, keys, &stack);
    if constexpr (std::is_reference_v<R>)
      return std::get<0>(std::tie(args...));
    else
      return c10::impl::PopResult<R>::call(stack);
  }
};

/// An operation that has such a kernel.
struct UnboxedRow {
  std::string_view full;  ///< "aten::mean.dim"
  void (*add)(torch::Library& aten, const char* full);
};

template <class Op, class Boxed>
void add_unboxed(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN((Unboxed<Op, Boxed>::call)));
}

/// The kernel on hpu of an operator that has no unboxed one. Boxed: CpuFallback or its like.
template <class Boxed>
void add_boxed(const c10::OperatorHandle& op) {
  add_kernel(op.operator_name(), c10::DispatchKey::HPU,
             c10::BoxedKernel::makeFromFunctor(std::make_unique<Boxed>(op.schema())));
}

inline bool has_row(std::span<const UnboxedRow> rows, std::string_view full) {
  return std::any_of(rows.begin(), rows.end(), [&](const UnboxedRow& row) { return full == row.full; });
}

inline void register_rows(std::span<const UnboxedRow> rows, torch::Library& aten) {
  for (const UnboxedRow& row : rows) row.add(aten, row.full.data());
}

// Small operations whose bits are the CPU kernel's own (exp, silu, softmax, ...): that kernel, told of the device's
// memory without an alias.
//
//   small_block() (call_alias.h)  ->  a new tensor, the CPU's loop
//   anything else            ->  unboxed.h
//
// Of a pointwise operation's time the loop takes little, its TensorIterator most: that finds out how to walk the
// operands, which is one row of n elements here. So each thread has one for each operation and dtype, made over two
// elements on the host, and only tells it where to walk.

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

// The operations of the fallback that have a kernel without a stack.

/// full: "aten::mean.dim".
bool has_unboxed_kernel(const std::string& full);
void register_unboxed_kernels(torch::Library& aten);

}  // namespace fp8::runtime
