// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/large_blocks.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace fp8::runtime {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Mapping {
  void* base;         ///< of `mapped` bytes
  void* memory;       ///< the first huge page of them
  std::size_t bytes;  ///< from `memory` on, that a tensor may have
  std::size_t mapped;
};

void unmap(const Mapping& mapping) { munmap(mapping.base, mapping.mapped); }

using MappingPtr = std::unique_ptr<Mapping>;

/// Not destroyed: tensors may outlive main().
class Kept {
 public:
  /// Null: there is none.
  MappingPtr take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = by_bytes_.lower_bound(bytes);
    if (found == by_bytes_.end() || found->first - bytes > bytes / 8) return nullptr;
    return remove(found->second);
  }

  void keep(MappingPtr mapping) {
    const std::size_t most = most_.load(std::memory_order_relaxed);
    if (mapping->bytes > most) return unmap(*mapping);
    // The bytes stay as they are until the kernel takes the pages, and writing to one keeps it from that.
    madvise(mapping->memory, mapping->bytes, MADV_FREE);
    {
      const std::lock_guard lock(mutex_);
      all_.push_back(std::move(mapping));
      by_bytes_.emplace(all_.back()->bytes, std::prev(all_.end()));
      bytes_ += all_.back()->bytes;
    }
    give_back(most);
  }

  void give_back(std::size_t most) {
    std::list<MappingPtr> gone;
    {
      const std::lock_guard lock(mutex_);
      while (bytes_ > most) gone.push_back(remove(all_.begin()));
    }
    for (const MappingPtr& mapping : gone) unmap(*mapping);
  }

  void keep_at_most(std::size_t most) {
    most_ = most;
    give_back(most);
  }

  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  using Place = std::list<MappingPtr>::iterator;

  MappingPtr remove(Place place) {
    MappingPtr mapping = std::move(*place);
    auto [entry, end] = by_bytes_.equal_range(mapping->bytes);
    while (entry->second != place) ++entry;
    by_bytes_.erase(entry);
    all_.erase(place);
    bytes_ -= mapping->bytes;
    return mapping;
  }

  std::mutex mutex_;
  std::list<MappingPtr> all_;  ///< that kept longest first
  std::multimap<std::size_t, Place> by_bytes_;
  std::atomic<std::size_t> bytes_ = 0;  ///< changed under the mutex
  std::atomic<std::size_t> most_ = 0;
};

Kept& kept() {
  static Kept& all = *new Kept;
  return all;
}

MappingPtr map(std::size_t bytes) {
  const std::size_t mapped = bytes + kHugePage;
  if (mapped < bytes) return nullptr;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  void* memory = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
  // Not for the rest of them: each of a cache's tensors would take up to one more than it needs.
  madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return std::make_unique<Mapping>(base, memory, bytes, mapped);
}

void free_large(void* context) { kept().keep(MappingPtr(static_cast<Mapping*>(context))); }

}  // namespace

c10::DataPtr allocate_large(std::size_t bytes) {
  MappingPtr mapping = kept().take(bytes);
  if (mapping == nullptr) mapping = map(bytes);
  if (mapping == nullptr) {
    give_back_kept();
    mapping = map(bytes);
  }
  if (mapping == nullptr) return {};
  void* memory = mapping->memory;
  return c10::DataPtr(memory, mapping.release(), &free_large, c10::Device(c10::kCPU));
}

void keep_large_blocks(std::size_t most) { kept().keep_at_most(most); }

void give_back_kept(std::size_t most) {
  if (kept().bytes() > most) kept().give_back(most);
}

std::size_t kept_bytes() { return kept().bytes(); }

}  // namespace fp8::runtime
