// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <map>
#include <mutex>

namespace fp8::runtime {
namespace {

/// Regions in use, end by begin. Not destroyed: tensors may outlive main().
struct Regions {
  std::mutex mutex;
  std::map<const char*, const char*> ends;
};

Regions& regions() {
  static Regions& all = *new Regions;
  return all;
}

void unpin(void* context) {
  auto* const memory = static_cast<c10::DataPtr*>(context);
  {
    const std::lock_guard lock(regions().mutex);
    regions().ends.erase(static_cast<const char*>(memory->get()));
  }
  delete memory;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    auto* const begin = static_cast<char*>(memory->get());
    if (begin != nullptr) {
      const std::lock_guard lock(regions().mutex);
      regions().ends[begin] = begin + bytes;
    }
    return {begin, memory, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto& allocator = *new PinnedAllocator;
  return &allocator;
}

bool is_pinned(const void* pointer) {
  const auto* const at = static_cast<const char*>(pointer);
  const std::lock_guard lock(regions().mutex);
  auto after = regions().ends.upper_bound(at);
  return after != regions().ends.begin() && at < (--after)->second;
}

}  // namespace fp8::runtime
