// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory a kernel of ours may read and write as it lies there, without an alias.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include "fp8/runtime/device/block.h"

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

}  // namespace fp8::runtime
