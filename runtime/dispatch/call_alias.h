// SPDX-License-Identifier: Apache-2.0
// cpu_alias() for as long as one call lasts. Each takes two allocations, and a call has one for each operand: so a
// thread keeps those that it has used, and points them elsewhere.
//
//   kept: a CPU tensor over no memory  --call-->  over the operand's Block, of its geometry  --end-->  kept
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <utility>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/plain.h"

namespace fp8::runtime {

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
