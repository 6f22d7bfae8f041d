// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/block.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <memory>
#include <new>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {
namespace {

/// The hpu storage is gone: its memory goes, though aliases may be left.
void free_block(void* context) {
  const auto block = c10::intrusive_ptr<Block>::reclaim(static_cast<Block*>(context));
  account_free(block->device, block->bytes, block->memory.get());
  block->memory.clear();
  block->tag.reset();
  block->casts.reset();
}

/// Of memory that is none of our blocks.
c10::intrusive_ptr<c10::StorageImpl> foreign_alias(void* memory, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(memory, c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                                               /*resizable=*/true);
}

/// The address that const_data_ptr() gives where it may be asked.
const char* address_of(const at::Tensor& t) {
  if (t.numel() == 0 || !t.has_storage()) return nullptr;
  if (t.device().type() == c10::kHPU) finish_work();
  return static_cast<const char*>(storage_impl_of(t)->_mutable_data_ptr_no_checks().get()) +
         t.storage_offset() * static_cast<std::int64_t>(t.element_size());
}

c10::Device hpu(c10::DeviceIndex index) { return c10::Device(c10::kHPU, index); }

void copy_geometry(c10::TensorImpl* to, const at::Tensor& from) {
  to->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to->set_wrapped_number(true);  // asserts dim() == 0
  if (from.is_complex()) to->_set_conj(from.is_conj());
  to->_set_neg(from.is_neg());
}

}  // namespace

Block::Block(c10::DataPtr memory, std::size_t bytes, c10::DeviceIndex device)
    : StorageImpl(use_byte_size_t(), bytes, c10::DataPtr(memory.get(), c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                  /*resizable=*/true),
      memory(std::move(memory)),
      bytes(bytes),
      device(device) {}

Block::~Block() { delete order.load(std::memory_order_relaxed); }

c10::DataPtr make_block(c10::DataPtr memory, std::size_t bytes, c10::DeviceIndex device) {
  void* at = memory.get();
  account_allocation(device, bytes, at, "aten::empty");
  return c10::DataPtr(at, c10::make_intrusive<Block>(std::move(memory), bytes, device).release(), &free_block,
                      hpu(device));
}

namespace {

/// Null: it has none now.
Block* block_in(const c10::StorageImpl* storage) {
  const auto& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

/// Of a storage whose memory may come later.
[[gnu::noinline]] Block* block_after_work(const c10::StorageImpl* storage) {
  finish_work(Access::lookup);
  if (pending_of(storage) == nullptr) return block_in(storage);
  finish_work();
  const auto* pending = pending_of(storage);
  TORCH_CHECK(pending == nullptr, "[lazy] this tensor has no memory: ", pending->failure);
  return block_in(storage);
}

}  // namespace

Block* block_of(const c10::StorageImpl* storage) {
  if (storage == nullptr || storage->device_type() != c10::kHPU) return nullptr;
  Block* block = block_in(storage);
  if (block == nullptr || detail::g_finish_work.load(std::memory_order_acquire) != nullptr) [[unlikely]]
    return block_after_work(storage);
  return block;
}

bool same_place(const at::Tensor& a, const at::Tensor& b) { return address_of(a) == address_of(b); }

namespace {

std::atomic<void (*)()> g_alias_listener = nullptr;

void tell_listener() {
  finish_work();
  if (const auto heard = g_alias_listener.load(std::memory_order_relaxed)) [[unlikely]]
    heard();
}

}  // namespace

void set_alias_listener(void (*heard)()) { g_alias_listener = heard; }

at::Tensor cpu_alias(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != c10::kHPU) return t;
  tell_listener();
  auto* impl = t.unsafeGetTensorImpl();
  TORCH_CHECK(impl->has_storage(), "[hpu] expected a tensor with memory of the device, got one of layout ", t.layout());
  auto* storage = storage_impl_of(t);
  Block* block = block_of(storage);
  c10::intrusive_ptr<c10::StorageImpl> alias =
      block != nullptr ? block->alias()
                       : foreign_alias(storage->_mutable_data_ptr_no_checks().get(), storage->nbytes());
  if (block != nullptr) unpack_codes(*block, *storage);  // after the alias is held, which keeps them so
  // A VIEW impl does not add the autograd keys by itself, and CPU kernels expect them on tensors that are not inference
  // tensors.
  c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (!t.is_inference()) {
    keys = keys | c10::DispatchKeySet({c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutocastCPU});
  }
  auto result =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(std::move(alias)), keys, t.dtype());
  copy_geometry(result.unsafeGetTensorImpl(), t);
  return result;
}

void adopt(const at::Tensor& fresh, c10::DeviceIndex device) {
  check_takes(fresh.scalar_type(), DtypeUse::tensors, "hpu");
  auto* impl = fresh.unsafeGetTensorImpl();
  auto* storage = storage_impl_of(fresh);
  const std::size_t bytes = storage->nbytes();
  void* memory = storage->mutable_data_ptr().get();
  account_allocation(device, bytes, memory);  // first: if it throws, the CPU tensor is still whole
  auto block = c10::make_intrusive<Block>(c10::DataPtr(memory, c10::Device(c10::kCPU)), bytes, device);
  block->memory = storage->set_data_ptr(c10::DataPtr(memory, block.get(), &free_block, hpu(device)));
  (void)block.release();
  storage->set_allocator(hpu_allocator());
  storage->set_resizable(true);
  impl->_change_backend_component_keys(hpu(device));
  impl->set_storage_keep_dtype(fresh.storage());  // the same, now of another device
}

void adopt_resized_alias(c10::StorageImpl* hpu_storage) {
  Block* block = block_of(hpu_storage);
  if (block == nullptr) return;
  void* grown = block->mutable_data_ptr().get();
  const std::size_t bytes = block->nbytes();
  if (grown == block->memory.get()) return;
  try {
    account_allocation(block->device, bytes, grown);
  } catch (const c10::OutOfMemoryError&) {
    drop_resized_alias(hpu_storage);
    throw;
  }
  account_free(block->device, block->bytes, block->memory.get());
  block->memory = block->set_data_ptr(c10::DataPtr(grown, c10::Device(c10::kCPU)));
  block->bytes = bytes;
  auto& pointer = hpu_storage->_mutable_data_ptr_no_checks();
  (void)pointer.release_context();  // the Block stays; only the address below it changed
  hpu_storage->set_data_ptr_noswap(c10::DataPtr(grown, block, &free_block, hpu(block->device)));
  hpu_storage->set_nbytes(bytes);
}

void drop_resized_alias(c10::StorageImpl* hpu_storage) {
  Block* block = block_of(hpu_storage);
  if (block == nullptr || block->mutable_data_ptr().get() == block->memory.get()) return;
  block->set_data_ptr_noswap(c10::DataPtr(block->memory.get(), c10::Device(c10::kCPU)));  // frees the new memory
  block->set_nbytes(block->bytes);
}

at::Tensor view_on(const c10::Storage& storage, const at::Tensor& like) {
  // The source's key set (with CPU replaced) keeps inference tensors inference tensors.
  auto keys = like.unsafeGetTensorImpl()->key_set();
  auto result =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), keys, like.dtype());
  result.unsafeGetTensorImpl()->_change_backend_component_keys(storage.device());
  copy_geometry(result.unsafeGetTensorImpl(), like);
  return result;
}

namespace {

void free_host_block(void* context) { delete static_cast<HostBlock*>(context); }

c10::StorageImpl* host_storage(const at::TensorBase& t) {
  if (!t.defined() || !t.is_cpu() || !t.has_storage()) return nullptr;
  return storage_impl_of(t);
}

}  // namespace

HostBlock* host_block_of(const at::TensorBase& t) {
  auto* storage = host_storage(t);
  if (storage == nullptr) return nullptr;
  const auto& pointer = storage->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &free_host_block ? static_cast<HostBlock*>(pointer.get_context()) : nullptr;
}

HostBlock& make_host_block(const at::TensorBase& t) {
  if (HostBlock* block = host_block_of(t)) return *block;
  auto* storage = host_storage(t);
  TORCH_INTERNAL_ASSERT(storage != nullptr);
  void* memory = storage->_mutable_data_ptr_no_checks().get();
  auto* block = new HostBlock{c10::DataPtr(), nullptr};
  block->memory = storage->set_data_ptr(c10::DataPtr(memory, block, &free_host_block, c10::Device(c10::kCPU)));
  return *block;
}

namespace {

constexpr std::int64_t kMostWanted = std::int64_t{1} << 20;

std::uint8_t* memory_of(const Block& block) { return static_cast<std::uint8_t*>(block.memory.get()); }

CodeOrder& order_of(Block& block) {
  CodeOrder* found = block.order.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<CodeOrder>();
  if (block.order.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *found;
}

/// Rows that begin and end with a group of 16 have their bytes between the same addresses in either order.
bool lies_in_groups(const at::Tensor& codes, std::int64_t cols) {
  return codes.dim() == 2 && codes.is_contiguous() && codes.size(1) == cols && codes.size(0) % 16 == 0 &&
         cols % 4 == 0 && codes.storage_offset() % (16 * cols) == 0;
}

/// True if `codes` are a matrix of all the block's bytes.
bool fills(const at::Tensor& codes, const Block& block) {
  return codes.numel() > 0 && lies_in_groups(codes, codes.size(-1)) && codes.storage_offset() == 0 &&
         c10::isFloat8Type(codes.scalar_type()) && codes.nbytes() == block.bytes;
}

/// False where they are needed row by row, or there is no memory for it.
bool permute(Block& block, const at::Tensor& codes) {
  if (block.has_alias()) return false;
  try {
    kernels::pack_weight_in_place(memory_of(block), codes.size(0), codes.size(1));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void pack(Block& block, CodeOrder& order, const at::Tensor& codes) {
  const std::unique_lock alone(order.mutex);
  if (order.packed) return;
  // The holder of an alias reads rows. An alias that is made from now on finds `packed` set, and waits for the mutex.
  order.packed.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!permute(block, codes)) {
    order.products = 0;
    order.packed = false;
    return;
  }
  order.rows = codes.size(0);
  order.cols = codes.size(1);
  storage_impl_of(codes)->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[hpu] the codes of this weight lie packed for products: read them by an op, or through runtime::cpu_alias()");
}

}  // namespace

void unpack_codes(Block& block, c10::StorageImpl& storage) {
  CodeOrder* order = block.order.load(std::memory_order_acquire);
  if (order == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!order->packed.load(std::memory_order_seq_cst)) return;
  const std::unique_lock alone(order->mutex);
  if (!order->packed) return;
  kernels::unpack_weight_in_place(memory_of(block), order->rows, order->cols);
  storage.clear_data_ptr_access_error_msg_();
  order->wanted = std::min(kMostWanted, 2 * order->wanted);
  order->products = 0;
  order->packed = false;
}

CodesReader::CodesReader(const at::Tensor& codes) {
  Block* block = block_of(codes);
  if (block == nullptr) return;
  tell_listener();
  // Weights are tagged: of them others may make packed ones meanwhile, and must wait.
  CodeOrder* order = block->tag ? &order_of(*block) : block->order.load(std::memory_order_acquire);
  while (order != nullptr) {
    unpack_codes(*block, *storage_impl_of(codes));
    lock_ = std::shared_lock(order->mutex);
    if (!order->packed) return;
    lock_.unlock();  // packed again meanwhile
  }
}

CodesReader CodesReader::for_product(const at::Tensor& codes, bool reused) {
  finish_work();
  Block* block = block_of(codes);
  if (block == nullptr || (!reused && block->order.load(std::memory_order_acquire) == nullptr))
    return CodesReader(codes);
  CodeOrder& order = order_of(*block);
  if (reused && !order.packed && ++order.products >= order.wanted && fills(codes, *block)) pack(*block, order, codes);
  CodesReader reader;
  reader.lock_ = std::shared_lock(order.mutex);
  if (!order.packed) return reader;
  if (!lies_in_groups(codes, order.cols)) {
    reader.lock_.unlock();
    return CodesReader(codes);
  }
  reader.layout_ = kernels::Layout::packed;
  reader.packed_ = memory_of(*block) + codes.storage_offset();
  return reader;
}

}  // namespace fp8::runtime
