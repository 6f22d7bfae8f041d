// SPDX-License-Identifier: Apache-2.0
// cpu_alias() for as long as one call lasts. Each takes two allocations, and a call has one for each operand: so a
// thread keeps those that it has used, and points them elsewhere.
//
//   kept: a CPU tensor over no memory  --call-->  over the operand's Block, of its geometry  --end-->  kept
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <utility>

#include "fp8/runtime/device/block.h"

// Tensors whose memory a kernel of ours may read and write as it lies there, without an alias.

namespace fp8::runtime {

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
/// The same of a contiguous one.
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
  CallAlias(const CallAlias&) = delete;
  CallAlias& operator=(const CallAlias&) = delete;

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

}  // namespace fp8::runtime
