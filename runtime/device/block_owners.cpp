// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/block_owners.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

namespace detail {
std::atomic<int> g_histories{0};
}

namespace {

struct Entry {
  std::size_t bytes;
  c10::DeviceIndex device;
  const std::string *module, *op, *phase;
};

struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// Not destroyed: tensors may outlive main().
struct Entries {
  std::mutex mutex;
  std::unordered_map<const void*, Entry> blocks;
  std::unordered_set<std::string, NameHash, std::equal_to<>> names;  // not forgotten: entries point to them

  const std::string* name(std::string_view text) {
    const auto found = names.find(text);
    return &*(found != names.end() ? found : names.emplace(text).first);
  }
};

Entries& entries() {
  static Entries& all = *new Entries;
  return all;
}

}  // namespace

void remember_block(const void* memory, std::size_t bytes, c10::DeviceIndex device, const char* op) {
  const LeafRecord* leaf = LeafScope::current();
  if (OpScope::current() != nullptr) op = OpScope::current();
  const std::string_view known = leaf != nullptr ? leaf->op : std::string_view(op != nullptr ? op : "");
  std::string_view phase = PhaseScope::current();
  if (phase.empty() && leaf != nullptr && leaf->backward) phase = "backward";  // on a thread of autograd's
  auto& all = entries();
  const std::lock_guard lock(all.mutex);
  if (!has_owner(bytes)) return;  // the history ended meanwhile
  all.blocks[memory] = {bytes, device, all.name(ModuleScope::current()), all.name(known), all.name(phase)};
}

void forget_block(const void* memory) noexcept {
  auto& all = entries();
  const std::lock_guard lock(all.mutex);
  all.blocks.erase(memory);
}

std::vector<MemoryBlock> owned_blocks(c10::DeviceIndex device) {
  std::vector<MemoryBlock> blocks;
  auto& all = entries();
  {
    const std::lock_guard lock(all.mutex);
    for (const auto& [memory, entry] : all.blocks)
      if (entry.device == device)
        blocks.push_back({static_cast<std::int64_t>(entry.bytes), *entry.module, *entry.op, *entry.phase,
                          reinterpret_cast<std::uintptr_t>(memory)});
  }
  std::ranges::sort(blocks, [](const MemoryBlock& a, const MemoryBlock& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.address < b.address;
  });
  return blocks;
}

struct MemoryHistory::Listener : LeafListener {
  Listening listening{*this};  // so that leaves have names, and nodes of backward modules
};

MemoryHistory::MemoryHistory() : listener_(std::make_unique<Listener>()) { detail::g_histories.fetch_add(1); }

MemoryHistory::~MemoryHistory() {
  auto& all = entries();
  const std::lock_guard lock(all.mutex);
  if (detail::g_histories.fetch_sub(1) != 1) return;
  std::erase_if(all.blocks, [](const auto& block) { return !has_owner(block.second.bytes); });
}

void name_memory(const at::Tensor& tensor, std::string_view module, std::string_view what) {
  const Block* block = block_of(tensor);
  if (block == nullptr) return;
  auto& all = entries();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(block->memory.get());
  if (found == all.blocks.end()) return;
  found->second.module = all.name(module);
  found->second.op = all.name(what);
}

}  // namespace fp8::runtime
