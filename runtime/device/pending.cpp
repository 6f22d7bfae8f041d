// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/pending.h"

#include "fp8/runtime/device/allocator.h"

namespace fp8::runtime {

std::atomic<void (*)(std::function<void()>)> detail::g_run_in_order{nullptr};

namespace {

void free_pending(void* context) { delete static_cast<PendingMemory*>(context); }

}  // namespace

c10::Storage pending_storage(std::size_t bytes, c10::DeviceIndex device) {
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(bytes),
      c10::DataPtr(nullptr, new PendingMemory, &free_pending, c10::Device(c10::kHPU, device)), hpu_allocator(),
      /*resizable=*/true);
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[lazy] the call that gives this tensor has not run: read it by an operation, or wait by mark_step(sync)");
  return c10::Storage(std::move(impl));
}

PendingMemory* pending_of(const c10::StorageImpl* storage) {
  if (storage == nullptr) return nullptr;
  const auto& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &free_pending ? static_cast<PendingMemory*>(pointer.get_context()) : nullptr;
}

void settle(c10::StorageImpl& storage) {
  PendingMemory* pending = pending_of(&storage);
  TORCH_INTERNAL_ASSERT(pending != nullptr && pending->made.unsafeGetStorageImpl() != nullptr);
  const c10::Storage made = std::move(pending->made);  // then it has the PendingMemory, and takes it along
  storage.clear_data_ptr_access_error_msg_();
  storage.swap_data_ptr(*made.unsafeGetStorageImpl());
}

}  // namespace fp8::runtime
