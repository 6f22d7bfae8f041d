// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/host_block.h"

namespace fp8::runtime {
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

}  // namespace fp8::runtime
