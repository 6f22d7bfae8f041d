// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/large_blocks.h"
#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/io/base/runtime_flags.h"

namespace fp8::runtime {
namespace {

/// Counters of one device; relaxed atomics, the peak by compare-exchange.
struct Books {
  std::atomic<std::int64_t> limit{0};  ///< 0: the environment was not asked yet
  std::atomic<std::int64_t> in_use{0}, max_in_use{0}, max_alloc{0}, system_allocs{0}, system_frees{0}, ooms{0};
  std::atomic<std::int64_t> allocs_at_reset{0}, frees_at_reset{0};
};

constinit std::array<Books, kMaxDevices> g_books;

/// Throws for a value of FP8_HPU_MEMORY that is not allowed.
void ask_limits() {
  [[maybe_unused]] static const bool asked = [] {
    require_registered();
    const std::int64_t limit = memory_limit_from_environment();
    for (auto& b : g_books) b.limit = limit;
    return true;
  }();
}

Books& checked_books(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "Invalid device id ", device, ", the machine emulates ",
              device_count());
  ask_limits();
  return g_books[static_cast<std::size_t>(device)];
}

void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

/// Without a backtrace, which TORCH_CHECK_WITH would add.
[[noreturn]] void refuse(std::string message) { throw c10::OutOfMemoryError(std::move(message), nullptr); }

[[noreturn]] void refuse_host(std::size_t bytes) { refuse(c10::str("[hpu] the host can't give ", bytes, " bytes")); }

/// On a cache line by our own means: glibc before 2.38 does not find what posix_memalign gave back for the next one of
/// that size, and the heap of a model that reads a long prompt grows by all its activations.
c10::DataPtr allocate_line(std::size_t bytes) {
  constexpr std::uintptr_t kLine = 64;
  void* base = bytes <= SIZE_MAX - kLine ? std::malloc(bytes + kLine) : nullptr;
  if (base == nullptr) refuse_host(bytes);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(base) + kLine - 1) & ~(kLine - 1));
  return c10::DataPtr(aligned, base, &std::free, c10::Device(c10::kCPU));
}

/// Throws c10::OutOfMemoryError where the host has none.
c10::DataPtr allocate_host(std::size_t bytes) {
  if (bytes < kLargeFrom) return allocate_line(bytes);
  c10::DataPtr memory = allocate_large(bytes);
  if (memory.get() == nullptr) refuse_host(bytes);
  return memory;
}

/// "; largest owners: model.layers.3.mlp 1.20 GiB in 14 blocks, ...; 3.00 MiB in blocks of less than 1.00 MiB".
std::string largest_owners(c10::DeviceIndex device) {
  constexpr std::size_t kMost = 5;
  const auto size = [](std::int64_t bytes) {
    return c10::CachingAllocator::format_size(static_cast<std::uint64_t>(bytes));
  };
  const MemorySnapshot snapshot = memory_snapshot(device);
  const auto owners = snapshot.owners();
  std::string text = owners.empty() ? "" : "; largest owners: ";
  for (std::size_t i = 0; i < std::min(kMost, owners.size()); ++i) {
    const auto& [name, bytes, blocks] = owners[i];
    text += c10::str(i == 0 ? "" : ", ", name, " ", size(bytes), " in ", blocks, blocks == 1 ? " block" : " blocks");
  }
  const std::int64_t rest = snapshot.unaccounted();
  return rest > 0 ? text + c10::str("; ", size(rest), " in blocks of less than ", size(kOwnedFrom)) : text;
}

/// Bytes that may still be asked for.
std::size_t room_of(const Books& b) {
  const std::int64_t room = b.limit.load(std::memory_order_relaxed) - b.in_use.load(std::memory_order_relaxed);
  return static_cast<std::size_t>(std::max<std::int64_t>(room, 0));  // a limit may be set below what is in use
}

bool has_room(const Books& b, std::size_t bytes) { return bytes <= room_of(b); }

/// True if a profiler of this thread wants to know of memory.
bool profiles_memory() {  // the first question is memoryProfilingEnabled()'s too, at two thirds of the cost
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr && c10::memoryProfilingEnabled();
}

[[gnu::noinline]] void settle(c10::DeviceIndex device, std::size_t bytes) {
  ask_limits();
  Books& b = g_books[device];
  if (has_room(b, bytes)) return;
  ++b.ooms;
  if (profiles_memory())
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), static_cast<std::size_t>(b.in_use),
                                     static_cast<std::size_t>(b.limit), c10::Device(c10::kHPU, device));
  refuse(c10::str("[hpu] out of memory on hpu:", static_cast<int>(device), ": tried to allocate ", bytes, " bytes, ",
                  b.in_use.load(), " of ", b.limit.load(), " are in use", largest_owners(device)));
}

/// Refuses before the host memory is touched.
void check_room(c10::DeviceIndex device, std::size_t bytes) {
  if (!has_room(g_books[device], bytes)) [[unlikely]]
    settle(device, bytes);
}

std::atomic<bool> g_reported{false};  ///< a profiler heard of an allocation: frees ask whether one listens from then on

void report(const Books& b, c10::DeviceIndex device, void* memory, std::int64_t bytes) {
  c10::reportMemoryUsageToProfiler(memory, bytes, static_cast<std::size_t>(b.in_use), static_cast<std::size_t>(b.limit),
                                   c10::Device(c10::kHPU, device));
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    if (bytes == 0)
      return make_block(c10::DataPtr(nullptr, c10::Device(c10::kCPU)), 0, device);  // a Block: out= may enlarge it
    if (bytes >= kLargeFrom) {  // make_block() asks too, before a small one is touched
      check_room(device, bytes);
      give_back_kept(room_of(g_books[device]) - bytes);
    }
    return make_block(allocate_host(bytes), bytes, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { give_back_kept(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryStats s = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats out;
    for (auto* bytes : {&out.allocated_bytes[0], &out.active_bytes[0], &out.requested_bytes[0]}) {
      bytes->current = s.InUse;
      bytes->peak = s.MaxInUse;
    }
    out.reserved_bytes[0].current = out.reserved_bytes[0].peak = s.Limit;  // as memory_reserved()
    for (auto* count : {&out.allocation[0], &out.active[0], &out.segment[0]}) {
      count->current = s.ActiveAllocs;
      count->allocated = s.NumAllocs;
      count->freed = s.NumFrees;
    }
    out.num_ooms = g_books[device].ooms;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated_memory_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_memory_stats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto [free, all] = mem_get_info(device);
    return {static_cast<std::size_t>(free), static_cast<std::size_t>(all)};
  }
};

Allocator& instance() {
  static Allocator& allocator = *new Allocator;
  return allocator;
}

/// Of this thread's innermost HostAllocationsFor.
struct HostMemory {
  c10::DeviceIndex device = -1;
  const char* op = nullptr;
};
thread_local HostMemory t_host_memory;

/// The CPU's allocator, which asks the device's books first where its memory will be the device's.
class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* cpu) : cpu_(cpu) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (const c10::DeviceIndex device = t_host_memory.device; device >= 0) check_room(device, bytes);
    return cpu_->allocate(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return cpu_->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return cpu_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { cpu_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* cpu_;
};

[[maybe_unused]] const bool g_allocators_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&refuse_host))) return false;
  c10::SetAllocator(c10::kHPU, &instance());
  c10::SetCPUAllocator(new HostAllocator(c10::GetCPUAllocator()));
  return true;
}();

}  // namespace

c10::DeviceAllocator* hpu_allocator() { return &instance(); }

HostAllocationsFor::HostAllocationsFor(c10::DeviceIndex device, const char* op) {
  auto& now = t_host_memory;
  previous_ = std::exchange(now.device, device);
  previous_op_ = std::exchange(now.op, op);
}
HostAllocationsFor::~HostAllocationsFor() { t_host_memory = {previous_, previous_op_}; }

void account_allocation(c10::DeviceIndex device, std::size_t bytes, void* memory, const char* op) {
  if (bytes == 0) return;
  check_room(device, bytes);
  if (has_owner(bytes)) [[unlikely]]
    remember_block(memory, bytes, device, t_host_memory.op != nullptr ? t_host_memory.op : op);
  Books& b = g_books[device];
  const auto size = static_cast<std::int64_t>(bytes);
  raise_to(b.max_in_use, b.in_use.fetch_add(size, std::memory_order_relaxed) + size);
  raise_to(b.max_alloc, size);
  b.system_allocs.fetch_add(1, std::memory_order_relaxed);
  if (profiles_memory()) [[unlikely]] {
    g_reported.store(true, std::memory_order_relaxed);
    report(b, device, memory, size);
  }
}

void account_free(c10::DeviceIndex device, std::size_t bytes, void* memory) noexcept {
  if (bytes == 0) return;
  if (has_owner(bytes)) [[unlikely]]
    forget_block(memory);
  Books& b = g_books[device];
  const auto size = static_cast<std::int64_t>(bytes);
  b.in_use.fetch_sub(size, std::memory_order_relaxed);
  b.system_frees.fetch_add(1, std::memory_order_relaxed);
  if (g_reported.load(std::memory_order_relaxed) && profiles_memory()) [[unlikely]]
    report(b, device, memory, -size);
}

MemoryStats memory_stats(int device) {
  const Books& b = checked_books(device);
  MemoryStats s;
  s.Limit = b.limit;
  s.InUse = b.in_use;
  s.MaxInUse = b.max_in_use;
  s.TotalSystemAllocs = b.system_allocs;
  s.TotalSystemFrees = b.system_frees;
  s.NumAllocs = s.TotalSystemAllocs - b.allocs_at_reset;
  s.NumFrees = s.TotalSystemFrees - b.frees_at_reset;
  s.ActiveAllocs = s.TotalActiveAllocs = s.TotalSystemAllocs - s.TotalSystemFrees;
  s.MaxAllocSize = b.max_alloc;
  return s;
}

std::array<std::pair<const char*, std::int64_t>, 10> by_name(const MemoryStats& s) {
  return {{{"Limit", s.Limit},
           {"InUse", s.InUse},
           {"MaxInUse", s.MaxInUse},
           {"NumAllocs", s.NumAllocs},
           {"NumFrees", s.NumFrees},
           {"ActiveAllocs", s.ActiveAllocs},
           {"MaxAllocSize", s.MaxAllocSize},
           {"TotalSystemAllocs", s.TotalSystemAllocs},
           {"TotalSystemFrees", s.TotalSystemFrees},
           {"TotalActiveAllocs", s.TotalActiveAllocs}}};
}

std::int64_t memory_allocated(int device) { return memory_stats(device).InUse; }
std::int64_t max_memory_allocated(int device) { return memory_stats(device).MaxInUse; }
std::int64_t memory_reserved(int device) { return memory_stats(device).Limit; }
std::int64_t max_memory_reserved(int device) { return memory_stats(device).Limit; }

std::pair<std::int64_t, std::int64_t> mem_get_info(int device) {
  const MemoryStats s = memory_stats(device);
  return {std::max<std::int64_t>(s.Limit - s.InUse, 0), s.Limit};  // a limit may be set below what is in use
}

void set_memory_limit(std::int64_t bytes, int device) {
  TORCH_CHECK(bytes > 0, "[set_memory_limit] expected bytes > 0, got ", bytes);
  checked_books(device).limit = bytes;
  io::override_flag("FP8_HPU_MEMORY", io::FlagSetting{std::to_string(bytes), io::FlagSource::call,
                                                      "set_memory_limit() of hpu:" + std::to_string(device)});
}

void reset_peak_memory_stats(int device) {
  Books& b = checked_books(device);
  b.max_in_use = b.in_use.load();
  b.max_alloc = 0;
}

void reset_accumulated_memory_stats(int device) {
  Books& b = checked_books(device);
  b.allocs_at_reset = b.system_allocs.load();
  b.frees_at_reset = b.system_frees.load();
}

std::string memory_summary(int device) {
  const MemoryStats s = memory_stats(device);
  const std::string bar(52, '=');
  char text[1024];
  const double gib = 1024.0 * 1024 * 1024, mib = 1024.0 * 1024;
  std::snprintf(
      text, sizeof text,
      "|%s|\n|     PyTorch HPU memory summary, device ID %-10d|\n|%s|\n"
      "  Limit (GB)      %20.2f\n  InUse (MB)      %20.2f\n  MaxInUse (MB)   %20.2f\n  NumAllocs       %20lld\n"
      "  NumFrees        %20lld\n  MaxAllocSize (MB)%19.2f\n  ActiveAllocs    %20lld\n",
      bar.c_str(), device, std::string(52, '-').c_str(), s.Limit / gib, s.InUse / mib, s.MaxInUse / mib,
      static_cast<long long>(s.NumAllocs), static_cast<long long>(s.NumFrees), s.MaxAllocSize / mib,
      static_cast<long long>(s.ActiveAllocs));
  return text;
}

}  // namespace fp8::runtime
