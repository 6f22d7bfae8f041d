// SPDX-License-Identifier: Apache-2.0
// One allocation of the hpu device, which lives in host memory under two StorageImpls:
//
//   hpu StorageImpl --DataPtr--> Block { memory, bytes, tag, casts, order }
//                                  : CPU StorageImpl (alias, non-owning)   what CPU kernels work on, without a copy
//
// Two storages, because a view made inside a CPU kernel takes its device from the storage. This is the only place that
// knows the trick; everybody else calls cpu_alias() and adopt().
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <mutex>

namespace fp8::runtime {

/// What intercept/ hangs on a weight's memory. It survives views, detach, t() and InferenceMode, and may object to
/// accesses that would misread the memory; dispatch/ asks it without knowing why.
struct BlockTag : c10::BackendMeta {
  /// An op that nobody handled is about to use `tensor`, which lies in the tagged block. Throws to refuse.
  virtual void check_access(const std::string& op, const at::Tensor& tensor) const = 0;
  /// copy_(to, from) where `from` or `to` lies in the tagged block; asked once, whichever of them does. Throws to
  /// refuse.
  virtual void check_copy(const at::Tensor& to, const at::Tensor& from) const = 0;
  /// After that copy: the tag may go along.
  virtual void copied(const at::Tensor& to, const at::Tensor& from) const = 0;
  /// self.set_(...) or self.set_data(...) is about to give the tagged `self` the memory of `source`. Throws to refuse.
  virtual void check_replace(const at::Tensor& self, const at::Tensor& source) const = 0;
  /// Then, still before: the tag may go along to `source`.
  virtual void replaced(const at::Tensor& self, const at::Tensor& source) const = 0;
};

struct CodeOrder;

/// One allocation, and the alias storage on it: resizable with the CPU's allocator, so that out= kernels can enlarge it
/// (adopt_resized_alias() then takes the new memory). The hpu storage holds one reference, each alias tensor one more;
/// with the hpu storage the memory goes.
struct Block final : c10::StorageImpl {
  c10::DataPtr memory;
  std::size_t bytes = 0;
  c10::DeviceIndex device = 0;
  c10::intrusive_ptr<BlockTag> tag;
  /// What was computed from the memory's content and goes with it (fp8_tensor/cast_once.h).
  c10::intrusive_ptr<c10::intrusive_ptr_target> casts = {};
  std::mutex casts_mutex = {};
  /// Owned; of codes that products have read (code_order.h).
  std::atomic<CodeOrder*> order = nullptr;

  Block(c10::DataPtr memory, std::size_t bytes, c10::DeviceIndex device);
  ~Block() override;

  c10::intrusive_ptr<c10::StorageImpl> alias() { return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(this); }
  /// Whether somebody holds the alias.
  bool has_alias() const { return c10::raw::intrusive_ptr::use_count(const_cast<Block*>(this)) != 1; }
};

/// A DataPtr on hpu:device that owns a new Block around `memory`. Throws c10::OutOfMemoryError over the device's limit.
c10::DataPtr make_block(c10::DataPtr memory, std::size_t bytes, c10::DeviceIndex device);

/// The Block below a storage; nullptr for storages that are not ours (from_blob, other devices).
Block* block_of(const c10::StorageImpl* storage);
inline c10::StorageImpl* storage_impl_of(const at::TensorBase& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
inline Block* block_of(const at::TensorBase& t) {
  return t.defined() && t.has_storage() ? block_of(storage_impl_of(t)) : nullptr;
}

/// Whether const_data_ptr() of both is one address, also where it would throw.
bool same_place(const at::Tensor& a, const at::Tensor& b);

/// A CPU tensor over the same memory (sizes, strides, offset, conj and neg bits alike), without autograd history. The
/// memory lives as long as the hpu tensor: whoever keeps the alias longer must keep that too. CPU tensors are returned
/// as they are. Codes that lie packed for products (code_order.h) are put back into rows.
at::Tensor cpu_alias(const at::Tensor& hpu);

/// Turns a freshly made CPU tensor into an hpu tensor in place: its memory moves into a new Block, no copy.
void adopt(const at::Tensor& fresh, c10::DeviceIndex device);

/// After a CPU kernel enlarged the alias storage (out= of a wrong size): the new memory becomes the Block's.
void adopt_resized_alias(c10::StorageImpl* hpu_storage);

/// A view of `storage` (hpu) that has the geometry of the CPU tensor `like`.
at::Tensor view_on(const c10::Storage& storage, const at::Tensor& like);

}  // namespace fp8::runtime
