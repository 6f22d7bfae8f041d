// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/memory_report.h"

#include <map>
#include <unordered_map>
#include <unordered_set>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/large_blocks.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

std::string line(const std::string& owner, std::int64_t bytes, std::int64_t blocks) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, " %12.2f %10lld\n", static_cast<double>(bytes) / (1024.0 * 1024),
                static_cast<long long>(blocks));
  constexpr std::size_t kWidth = 50;
  return "  " + owner + std::string(owner.size() < kWidth ? kWidth - owner.size() : 0, ' ') + numbers;
}

}  // namespace

std::string MemoryBlock::owner() const {
  if (!module.empty()) return module;
  if (op.empty()) return phase.empty() ? "unknown" : "(" + phase + ")";
  return phase.empty() ? op : op + " (" + phase + ")";
}

std::vector<MemoryOwner> MemorySnapshot::owners() const {
  std::map<std::string, MemoryOwner> sums;
  for (const MemoryBlock& block : blocks) {
    MemoryOwner& sum = sums[block.owner()];
    sum.bytes += block.bytes;
    sum.blocks += 1;
  }
  std::vector<MemoryOwner> owners;
  for (auto& [name, sum] : sums) owners.push_back({name, sum.bytes, sum.blocks});
  std::ranges::stable_sort(owners, std::greater<>(), &MemoryOwner::bytes);
  return owners;
}

std::int64_t MemorySnapshot::unaccounted() const {
  std::int64_t rest = in_use;
  for (const MemoryBlock& block : blocks) rest -= block.bytes;
  return std::max<std::int64_t>(rest, 0);  // other threads may have made blocks between the two readings
}

std::string MemorySnapshot::json() const {
  io::Json list = io::Json::array(), sums = io::Json::array();
  for (const MemoryBlock& b : blocks)
    list.push_back(
        {{"bytes", b.bytes}, {"address", b.address}, {"module", b.module}, {"op", b.op}, {"phase", b.phase}});
  for (const MemoryOwner& o : owners()) sums.push_back({{"owner", o.name}, {"bytes", o.bytes}, {"blocks", o.blocks}});
  const io::Json all = {{"device", device},
                        {"in_use", in_use},
                        {"unaccounted", unaccounted()},
                        {"owners", std::move(sums)},
                        {"blocks", std::move(list)}};
  return all.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

std::string MemorySnapshot::table(std::size_t rows) const {
  const auto all = owners();
  std::string text = "  owner" + std::string(45, ' ') + "           MB     blocks\n";
  MemoryOwner rest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < rows) {
      text += line(all[i].name, all[i].bytes, all[i].blocks);
      continue;
    }
    rest.bytes += all[i].bytes;
    rest.blocks += all[i].blocks;
  }
  if (rest.blocks > 0) text += line("others", rest.bytes, rest.blocks);
  if (unaccounted() > 0) {
    std::string last = line("smaller blocks, not accounted for", unaccounted(), 0);
    text += last.substr(0, last.size() - 2) + "-\n";
  }
  return text;
}

MemorySnapshot memory_snapshot(int device) {
  const MemoryStats stats = memory_stats(device);  // checks the index
  return {device, stats.InUse, owned_blocks(static_cast<c10::DeviceIndex>(device))};
}

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

// device.h, allocator.h and memory_report.h as operators (intercept/tag_operators.h lists them).

namespace {

c10::Dict<std::string, std::int64_t> stats_of(std::int64_t device) {
  c10::Dict<std::string, std::int64_t> stats;
  for (const auto& [name, value] : by_name(memory_stats(static_cast<int>(device)))) stats.insert(name, value);
  return stats;
}

std::string summary_of(std::int64_t device) { return memory_summary(static_cast<int>(device)); }
std::string snapshot_of(std::int64_t device) { return memory_snapshot(static_cast<int>(device)).json(); }
void reset_peak(std::int64_t device) { reset_peak_memory_stats(static_cast<int>(device)); }
void reset_accumulated(std::int64_t device) { reset_accumulated_memory_stats(static_cast<int>(device)); }

void keep_at_most(std::int64_t most) {
  TORCH_CHECK(most >= 0, "[keep_large_blocks] expected bytes >= 0, got ", most);
  keep_large_blocks(static_cast<std::size_t>(most));
}

void set_history(bool on) {
  static auto& mutex = *new std::mutex;
  static auto& history = *new std::unique_ptr<MemoryHistory>;  // not destroyed: tensors may outlive main()
  const std::lock_guard lock(mutex);
  if (on && history == nullptr) history = std::make_unique<MemoryHistory>();
  if (!on) history.reset();
}

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("device_name() -> str", [] { return std::string(name_of(device_kind())); });
  m.def("memory_stats(int device=0) -> Dict(str, int)", &stats_of);
  m.def("memory_summary(int device=0) -> str", &summary_of);
  m.def("memory_snapshot(int device=0) -> str", &snapshot_of);
  m.def("memory_history(bool on) -> ()", &set_history);
  m.def("empty_cache() -> ()", [] { give_back_kept(); });
  m.def("keep_large_blocks(int most) -> ()", &keep_at_most);
  m.def("reset_peak_memory_stats(int device=0) -> ()", &reset_peak);
  m.def("reset_accumulated_memory_stats(int device=0) -> ()", &reset_accumulated);
}

}  // namespace fp8::runtime
