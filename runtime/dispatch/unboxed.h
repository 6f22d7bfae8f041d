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
#include <ATen/core/boxing/impl/boxing.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <tuple>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

// Tensors whose memory a kernel of ours may read and write as it lies there, without an alias.

/// All that a plain tensor's key set may have: not conj, neg, named, zero, sparse, a subclass of Python's, ...
inline constexpr c10::DispatchKeySet kPlainKeys =
    c10::DispatchKeySet(c10::DispatchKey::HPU) | c10::DispatchKeySet(c10::DispatchKey::AutogradHPU) |
    c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | c10::DispatchKeySet(c10::DispatchKey::AutocastHPU);

/// The Block of a tensor of one dimension or more, without a tag, whose bytes can be no codes that a product packs
/// meanwhile (device/block.h); else null.
inline const Block* dense_block(const at::Tensor& t) {
  if (!t.defined()) return nullptr;
  const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  if (!kPlainKeys.has_all(impl->key_set()) || impl->dim() == 0) return nullptr;
  if (impl->itemsize() == 1 && t.scalar_type() != at::kBool) return nullptr;
  const Block* block = block_of(impl->unsafe_storage().unsafeGetStorageImpl());
  if (block == nullptr || block->tag || block->order.load(std::memory_order_relaxed) != nullptr) return nullptr;
  return block;
}
/// dense_block() of a contiguous tensor.
inline const Block* plain_block(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->is_contiguous() ? dense_block(t) : nullptr;
}

/// plain_block() of a tensor of f32 or bf16 on the present device, of 1 to 32768 elements (from there on the CPU's
/// kernels use all threads), while no trace is written; else null.
const Block* small_block(const at::Tensor& t);

/// A new contiguous tensor on the present device.
at::Tensor empty_plain(at::IntArrayRef sizes, at::ScalarType type);

/// The first element of a plain tensor; what is written through it is the caller's to know.
inline char* plain_data(const at::Tensor& t) {
  const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return static_cast<char*>(impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) +
         impl->storage_offset() * static_cast<std::int64_t>(impl->itemsize());
}

// cpu_alias() for as long as one call lasts. Each takes two allocations, and a call has one for each operand: so a
// thread keeps those that it has used, and points them elsewhere.
//
//   kept: a CPU tensor over no memory  --call-->  over the operand's Block, of its geometry  --end-->  kept
class CallAlias {
 public:
  explicit CallAlias(const at::Tensor& t) {
    if (!is_ordinary(t)) {
      alias_ = cpu_alias(t);
      return;
    }
    kept_ = &kept_tensors()[t.is_inference() ? 1 : 0];
    if (kept_->empty()) {
      alias_ = cpu_alias(t);
      return;
    }
    alias_ = kept_->pop_back_val();
    c10::TensorImpl* alias = alias_.unsafeGetTensorImpl();
    alias->set_storage_and_dtype(c10::Storage(block_of(storage_impl_of(t))->alias()), t.dtype());
    alias->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  }
  ~CallAlias() {
    constexpr std::size_t kMostKept = 8;
    // Another holder, and the tensor is its own.
    if (kept_ == nullptr || kept_->size() == kMostKept || alias_.use_count() != 1 || alias_.weak_use_count() != 1)
      return;
    alias_.unsafeGetTensorImpl()->set_storage_keep_dtype(no_memory());
    kept_->push_back(std::move(alias_));
  }
  CallAlias& operator=(CallAlias&&) = delete;

  at::Tensor& get() { return alias_; }

 private:
  using Kept = c10::SmallVector<at::Tensor, 8>;

  /// Ones that keep their keys from call to call, and whose bytes are no codes (block.h).
  static bool is_ordinary(const at::Tensor& t) {
    if (!t.defined()) return false;
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    if (!kPlainKeys.has_all(impl->key_set()) || impl->is_wrapped_number()) return false;
    return (impl->itemsize() != 1 || t.scalar_type() == at::kBool) && block_of(storage_impl_of(t)) != nullptr;
  }
  /// Of this thread: [0] as autograd knows them, [1] inference tensors.
  static std::array<Kept, 2>& kept_tensors() {
    thread_local std::array<Kept, 2> kept;
    return kept;
  }
  static const c10::Storage& no_memory() {
    static const auto& none = *new c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, at::kCPU),
                                                c10::GetCPUAllocator(), /*resizable=*/true);
    return none;
  }

  at::Tensor alias_;
  Kept* kept_ = nullptr;
};

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

/// An argument as the CPU's kernel gets it, as long as the call lasts: tensors' aliases, all else as it is.
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

/// Undefined: a gradient that nobody asked for.
inline void adopt_results(const at::Tensor& fresh, c10::DeviceIndex device) {
  if (fresh.defined()) adopt(fresh, device);
}
template <class... T>
void adopt_results(const std::tuple<T...>& fresh, c10::DeviceIndex device) {
  std::apply([device](const T&... t) { (adopt_results(t, device), ...); }, fresh);
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

// Small operations whose bits are the CPU kernel's own (exp, silu, softmax, ...): that kernel, given the device's
// memory without an alias.
//
//   small_block()   ->  a new tensor, the CPU's loop
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
  PreparedUnary& operator=(PreparedUnary&&) = delete;

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

}  // namespace fp8::runtime
