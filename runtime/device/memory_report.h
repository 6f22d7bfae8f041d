// SPDX-License-Identifier: Apache-2.0
// The device's memory: the live blocks, and the maker of each.
//
//   const MemoryHistory history;                 from here on every block; without one those of 1 MiB or more
//   ...
//   puts(memory_snapshot().table().c_str());
//
//   owner                                         MB     blocks
//   model.layers.3.mlp.down_proj               12.58          4
//   aten::zeros_like (optimizer)                8.39         16
//
// The sizes of the blocks add up to what memory_stats() says is in use, if the history began before the first of them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::runtime {

/// One live allocation; what is not known of its maker is "".
struct MemoryBlock {
  std::int64_t bytes = 0;
  std::string module;  ///< path of the ModuleScope that it was made in, or that name_memory() gave
  std::string op;      ///< "aten::mul", "hpu::fp8_gemm_v2"; "parameter": by name_memory()
  std::string phase;   ///< of the PhaseScope: "forward", "backward", "optimizer"
  std::uintptr_t address = 0;

  /// The module, else the op and its phase: "aten::zeros_like (optimizer)"; "unknown".
  std::string owner() const;
};

struct MemoryOwner {
  std::string name;
  std::int64_t bytes = 0, blocks = 0;
};

struct MemorySnapshot {
  int device = 0;
  std::int64_t in_use = 0;          ///< as memory_stats() says
  std::vector<MemoryBlock> blocks;  ///< the largest first

  /// Sums of the blocks, the largest first.
  std::vector<MemoryOwner> owners() const;
  /// Bytes in use that no block here accounts for: small ones that no MemoryHistory saw.
  std::int64_t unaccounted() const;
  /// {"device", "in_use", "unaccounted", "owners": [{"owner", "bytes", "blocks"}],
  ///  "blocks": [{"bytes", "address", "module", "op", "phase"}]}
  std::string json() const;
  /// A line for each of the `rows` largest owners, and one for all others.
  std::string table(std::size_t rows = 20) const;
};

/// Throws c10::Error "Invalid device id" for an index that does not exist.
MemorySnapshot memory_snapshot(int device = 0);

/// While one lives, every block of every device is accounted for, and listens to leaves: operations take the way that
/// they take under a profiler, and what backward makes has the module that it serves. Throws as Listening.
class MemoryHistory {
 public:
  MemoryHistory();
  ~MemoryHistory();
  MemoryHistory& operator=(MemoryHistory&&) = delete;

 private:
  struct Listener;
  std::unique_ptr<Listener> listener_;
};

/// The block of `tensor`, if it is accounted for, belongs to `module` as its `what`: "parameter".
void name_memory(const at::Tensor& tensor, std::string_view module, std::string_view what);

// The maker of each live Block, by the address of its memory:
//
//   address -> {bytes, device, module, op, phase}
//
// Of large ones always: what an entry costs (some 0.2 us) is nothing beside filling them. Of all of them while a
// MemoryHistory lives. A small one is otherwise two comparisons. A child of fork() must not
// allocate on the device where other threads of its parent did: their lock is not taken over.

/// From so many bytes on a Block's maker is always known.
inline constexpr std::size_t kOwnedFrom = std::size_t{1} << 20;

namespace detail {
extern std::atomic<int> g_histories;
}

/// True if a Block of that size may have an entry.
inline bool has_owner(std::size_t bytes) {
  return bytes >= kOwnedFrom || detail::g_histories.load(std::memory_order_relaxed) != 0;
}

/// `op` made it, if it is known, in what this thread is about (leaf/leaf.h): op "" or null: not known.
void remember_block(const void* memory, std::size_t bytes, c10::DeviceIndex device, const char* op);
void forget_block(const void* memory) noexcept;

/// The blocks of hpu:device that have an entry, the largest first.
std::vector<MemoryBlock> owned_blocks(c10::DeviceIndex device);

}  // namespace fp8::runtime
