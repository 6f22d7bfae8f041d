// SPDX-License-Identifier: Apache-2.0
// One allocation of the hpu device, which lives in host memory under two StorageImpls:
//
//   hpu StorageImpl --DataPtr--> Block { memory, bytes, tag, casts, order }
//                                  : CPU StorageImpl (alias, non-owning)   what CPU kernels work on, without a copy
//
// Two storages, because a view made inside a CPU kernel takes its device from the storage. Only this file knows the
// trick; all other code calls cpu_alias() and adopt().
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {

/// The mark that intercept/ hangs on a weight's memory. It survives views, detach, t() and InferenceMode, and may
/// object to accesses that would misread the memory; dispatch/ asks it without knowing why.
struct BlockTag : c10::BackendMeta {
  /// An op without a handler is about to use `tensor`, which lies in the tagged block. Throws to refuse.
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
  /// Results of the memory's content that go with it (fp8_tensor/cast.h).
  c10::intrusive_ptr<c10::intrusive_ptr_target> casts = {};
  std::mutex casts_mutex = {};
  /// Owned; of codes that products have read.
  std::atomic<CodeOrder*> order = nullptr;

  Block(c10::DataPtr memory, std::size_t bytes, c10::DeviceIndex device);
  ~Block() override;

  c10::intrusive_ptr<c10::StorageImpl> alias() { return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(this); }
  /// True if the alias is held.
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

/// True if const_data_ptr() of both is one address, also where it would throw.
bool same_place(const at::Tensor& a, const at::Tensor& b);

/// A CPU tensor over the same memory (sizes, strides, offset, conj and neg bits alike), without autograd history. The
/// memory lives as long as the hpu tensor: a caller that keeps the alias longer keeps that too. CPU tensors are
/// returned as they are. Codes that lie packed for products are put back into rows.
at::Tensor cpu_alias(const at::Tensor& hpu);

/// `heard` is called by each cpu_alias() of an hpu tensor from now on; nullptr: no longer. For a recording of the
/// device's work, which must not miss any.
void set_alias_listener(void (*heard)());

/// Turns a freshly made CPU tensor into an hpu tensor in place: its memory moves into a new Block, no copy.
void adopt(const at::Tensor& fresh, c10::DeviceIndex device);

/// After a CPU kernel enlarged the alias storage (out= of a wrong size): the new memory becomes the Block's.
void adopt_resized_alias(c10::StorageImpl* hpu_storage);

/// A view of `storage` (hpu) that has the geometry of the CPU tensor `like`.
at::Tensor view_on(const c10::Storage& storage, const at::Tensor& like);

// Host memory that carries a tag as a Block does: a copy of tagged memory has the same meaning, wherever it lies. Only
// copies that are marked have one; every other CPU tensor is as upstream makes it.
//
//   CPU StorageImpl --DataPtr--> HostBlock { memory, tag }      memory: the DataPtr that was there before

struct HostBlock {
  c10::DataPtr memory;
  c10::intrusive_ptr<BlockTag> tag;
};

/// On the TensorImpl of bytes that are a tagged storage itself (set_(Storage), as deep copies of storages make them),
/// no view of it.
struct WholeStorage final : c10::BackendMeta {};

/// The HostBlock below a CPU tensor; null if it has none.
HostBlock* host_block_of(const at::TensorBase& t);

/// That HostBlock, made where there is none. t: a CPU tensor with memory.
HostBlock& make_host_block(const at::TensorBase& t);

/// The tag of a tensor's memory, on hpu or of a host copy; null if none.
inline c10::intrusive_ptr<BlockTag> tag_of_memory(const at::TensorBase& t) {
  if (Block* block = block_of(t)) return block->tag;
  const HostBlock* host = host_block_of(t);
  return host == nullptr ? nullptr : host->tag;
}

// The order of an fp8 weight's codes in its memory. Decoding a token is bound by reading the weights, and the kernels
// read them fastest packed (kernels/gemm.h): a permutation of the bytes of every 16 rows, so it takes no memory.
//
//   row by row  --- products without gradient, again and again --->  packed
//               <-- other readers and writers of the memory --------
//
// cpu_alias() and CodesReader put packed codes back into rows. Any other way to their address throws, so that one
// order is not taken for the other. Each time they had to be put back, the next change waits for twice as many
// products.

/// Of a Block whose codes products have read.
struct CodeOrder {
  std::shared_mutex mutex;  ///< shared: the order stays as it is; alone: it is changed
  std::atomic<bool> packed = false;
  std::int64_t rows = 0, cols = 0;  ///< of the packed matrix
  std::atomic<std::int64_t> products = 0, wanted = 2;
};

/// The codes of a tensor on hpu or on the host, for as long as it is read: meanwhile their order does not change. One
/// of a tensor at a time on a thread.
class CodesReader {
 public:
  /// Row by row.
  explicit CodesReader(const at::Tensor& codes);
  /// For x . codes^T with codes [N, K], in whatever order they lie. reused: more such products will follow, so that it
  /// pays to pack a weight that has its memory for itself (N a multiple of 16, K of 4).
  static CodesReader for_product(const at::Tensor& codes, bool reused);

  kernels::Layout layout() const { return layout_; }
  /// Packed codes; of others the tensor knows.
  const std::uint8_t* packed() const { return packed_; }

 private:
  CodesReader() = default;

  std::shared_lock<std::shared_mutex> lock_;
  kernels::Layout layout_ = kernels::Layout::row_major;
  const std::uint8_t* packed_ = nullptr;
};

struct Block;

/// Puts packed codes back into rows; quick where there are none. storage: the block's.
void unpack_codes(Block& block, c10::StorageImpl& storage);

}  // namespace fp8::runtime
