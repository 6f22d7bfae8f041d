// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/block.h"

#include <c10/core/CPUAllocator.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/capabilities.h"
#include "fp8/runtime/device/code_order.h"
#include "fp8/runtime/device/host_memory.h"

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

/// What const_data_ptr() gives where it may be asked.
const char* address_of(const at::Tensor& t) {
  if (t.numel() == 0 || !t.has_storage()) return nullptr;
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

Block* block_of(const c10::StorageImpl* storage) {
  if (storage == nullptr || storage->device_type() != c10::kHPU) return nullptr;
  const auto& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

bool same_place(const at::Tensor& a, const at::Tensor& b) { return address_of(a) == address_of(b); }

at::Tensor cpu_alias(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != c10::kHPU) return t;
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

}  // namespace fp8::runtime
