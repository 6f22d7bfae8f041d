// SPDX-License-Identifier: Apache-2.0
// The origin of memory: in snapshots, in errors and for LibTorch's profilers. Sizes are counted by hand.
#include <c10/util/ThreadLocalDebugInfo.h>

#include <nlohmann/json.hpp>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/leaf/leaf.h"
#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::test {
namespace {

using runtime::memory_snapshot;
using runtime::memory_stats;
using runtime::MemoryHistory;
using runtime::MemorySnapshot;
using runtime::ModuleScope;
using runtime::PhaseScope;

constexpr std::int64_t kLarge = runtime::kOwnedFrom / sizeof(float);

/// The block below `t`; bytes 0: there is none.
runtime::MemoryBlock block_below(const at::Tensor& t, const MemorySnapshot& snapshot = memory_snapshot()) {
  for (const auto& block : snapshot.blocks)
    if (block.address == reinterpret_cast<std::uintptr_t>(t.storage().data())) return block;
  return {};
}

std::int64_t sum_of(const MemorySnapshot& snapshot) {
  std::int64_t sum = 0;
  for (const auto& block : snapshot.blocks) sum += block.bytes;
  return sum;
}

TEST(MemoryNumbers, AreTheVendors) {
  const at::Tensor a = at::empty({1000}, on_hpu());
  { const at::Tensor b = at::empty({5000}, on_hpu()); }
  const auto stats = memory_stats();
  EXPECT_EQ(runtime::memory_allocated(), stats.InUse);
  EXPECT_EQ(runtime::max_memory_allocated(), stats.MaxInUse);
  EXPECT_GE(runtime::max_memory_allocated(), runtime::memory_allocated() + 20000);
  EXPECT_EQ(runtime::memory_reserved(), stats.Limit);
  EXPECT_EQ(runtime::max_memory_reserved(), stats.Limit);
  EXPECT_EQ(runtime::mem_get_info(), (std::pair(stats.Limit - stats.InUse, stats.Limit)));
  const auto upstream = c10::getDeviceAllocator(at::kHPU)->getDeviceStats(0).reserved_bytes[0];
  EXPECT_EQ(upstream.current, stats.Limit);
  EXPECT_EQ(upstream.peak, stats.Limit);
  for (const auto number : {runtime::memory_allocated, runtime::max_memory_allocated, runtime::memory_reserved})
    EXPECT_REFUSED(number(7), "Invalid device id 7");
  EXPECT_REFUSED(runtime::mem_get_info(-1), "Invalid device id -1");
  runtime::set_memory_limit(10);
  EXPECT_EQ(runtime::mem_get_info(), (std::pair<std::int64_t, std::int64_t>(0, 10))) << "below what is in use";
  runtime::set_memory_limit(stats.Limit);
}

TEST(MemorySnapshots, LargeBlocksHaveAnOwnerAlways) {
  const std::string path = "model.layers.3.mlp";
  at::Tensor in_module, in_phase, small, alone;
  {
    const ModuleScope module(path);
    in_module = at::empty({kLarge}, on_hpu());
    small = at::empty({kLarge - 1}, on_hpu());
  }
  within(PhaseScope("optimizer"), [&] { in_phase = at::add(in_module, in_module); });
  alone = at::empty({kLarge}, on_hpu());
  EXPECT_EQ(block_below(in_module).owner(), path);
  EXPECT_EQ(block_below(in_module).bytes, kLarge * 4);
  EXPECT_EQ(block_below(in_phase).owner(), "aten::add (optimizer)");
  EXPECT_EQ(block_below(alone).owner(), "aten::empty");
  EXPECT_EQ(block_below(small).bytes, 0);
  EXPECT_GE(memory_snapshot().unaccounted(), static_cast<std::int64_t>(small.nbytes()));
  runtime::name_memory(alone, "head", "parameter");
  EXPECT_EQ(block_below(alone).owner(), "head");
  EXPECT_EQ(block_below(alone).op, "parameter");
  const auto address = reinterpret_cast<std::uintptr_t>(alone.storage().data());
  alone = at::Tensor();
  for (const auto& block : memory_snapshot().blocks) EXPECT_NE(block.address, address) << "freed";
}

TEST(MemorySnapshots, AHistoryAccountsForEveryByte) {
  const std::int64_t before = memory_snapshot().unaccounted();
  {
    const MemoryHistory history;
    const std::string path = "net.fc";
    at::Tensor x = at::ones({3, 5}, on_hpu()), y, out = at::empty({0}, on_hpu());
    within(ModuleScope(path), [&] { y = at::relu(x); });
    const at::Tensor z = at::mul(y, 2), half = z.narrow(0, 0, 1);
    at::abs_out(out, z);  // its memory grows
    x.resize_({100, 7});
    std::thread([&] { y = at::exp(z); }).join();  // the other thread frees
    const MemorySnapshot snapshot = memory_snapshot();
    EXPECT_EQ(snapshot.unaccounted(), before);
    EXPECT_EQ(sum_of(snapshot), memory_stats().InUse - before);
    EXPECT_EQ(block_below(x).bytes, 2800);
    EXPECT_EQ(block_below(out).bytes, 60);
    EXPECT_EQ(block_below(out).op, "aten::abs.out");
    EXPECT_EQ(block_below(y).op, "aten::exp");
    EXPECT_EQ(block_below(z).op, "aten::mul.Scalar");
    const at::Tensor w = [&] {
      const ModuleScope module(path);
      return at::relu(x);
    }();
    EXPECT_EQ(block_below(w).module, "net.fc");
    EXPECT_EQ(block_below(w).op, "aten::relu");
  }
  const at::Tensor later = at::ones({8}, on_hpu());
  EXPECT_EQ(block_below(later).bytes, 0) << "the history has ended";
}

TEST(MemorySnapshots, BackwardHasTheModuleThatItServes) {
  const MemoryHistory history;
  const std::string path = "encoder";
  const at::Tensor x = at::ones({6}, on_hpu()).requires_grad_();
  at::Tensor loss = within(ModuleScope(path), [&] { return (x * 3).exp().sum(); });
  within(PhaseScope("backward"), [&] { loss.backward(); });
  EXPECT_EQ(block_below(x.grad()).module, "encoder");
}

TEST(MemorySnapshots, OwnersAreSumsTheLargestFirst) {
  MemorySnapshot snapshot{0, 1000, {}};
  snapshot.blocks = {{500, "a", "aten::mm", "forward", 1},
                     {200, "", "aten::zeros_like", "optimizer", 2},
                     {150, "b", "parameter", "", 3},
                     {100, "b", "aten::mm", "backward", 4},
                     {10, "", "", "loss", 5}};
  const auto owners = snapshot.owners();
  ASSERT_EQ(owners.size(), 4u);
  EXPECT_EQ(owners[0].name, "a");
  EXPECT_EQ(owners[1].name, "b");
  EXPECT_EQ(owners[1].bytes, 250);
  EXPECT_EQ(owners[1].blocks, 2);
  EXPECT_EQ(owners[2].name, "aten::zeros_like (optimizer)");
  EXPECT_EQ(owners[3].name, "(loss)");
  EXPECT_EQ(snapshot.unaccounted(), 40);
  const auto json = nlohmann::json::parse(snapshot.json());
  expect_values(json, {{"in_use", 1000}, {"unaccounted", 40}});
  EXPECT_EQ(json["owners"][1], (nlohmann::json{{"owner", "b"}, {"bytes", 250}, {"blocks", 2}}));
  EXPECT_EQ(json["blocks"][1]["op"], "aten::zeros_like");
  EXPECT_EQ(json["blocks"].size(), 5u);
  const std::string table = snapshot.table(2);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5) << table;  // title, a, b, others, smaller blocks
  EXPECT_LT(table.find("  a "), table.find("  b ")) << table;
  EXPECT_THAT(table, HasSubstr("others"));
  EXPECT_REFUSED(memory_snapshot(3), "Invalid device id 3");
}

TEST(OutOfMemory, NamesTheFiveLargestOwners) {
  std::vector<at::Tensor> held;
  const auto limit = memory_stats().Limit;
  for (const std::int64_t mib : {7, 3, 6, 5, 4, 2}) {
    const std::string path = "layer." + std::to_string(mib);
    const ModuleScope module(path);
    for (int i = 0; i < 2; ++i) held.push_back(at::empty({mib << 20}, on_hpu(at::kByte)));
  }
  runtime::set_memory_limit(memory_stats().InUse + 100);
  const std::string in_use = std::to_string(memory_stats().InUse) + " of " + std::to_string(memory_stats().Limit);
  const std::string text = error_of([] { at::empty({101}, on_hpu(at::kByte)); });
  const std::string result = error_of([&] { at::add(held[0], held[0]); });  // asked before the host allocates
  runtime::set_memory_limit(limit);
  const std::string owners =
      "; largest owners: layer.7 14.00 MiB in 2 blocks, layer.6 12.00 MiB in 2 blocks, layer.5 10.00 MiB in 2 blocks, "
      "layer.4 8.00 MiB in 2 blocks, layer.3 6.00 MiB in 2 blocks";
  EXPECT_EQ(
      text.rfind("[hpu] out of memory on hpu:0: tried to allocate 101 bytes, " + in_use + " are in use" + owners, 0),
      0u)
      << text;
  EXPECT_THAT(text, Not(HasSubstr("layer.2")));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_THAT(result, AllOf(HasSubstr("tried to allocate 7340032 bytes"), HasSubstr("layer.7 14.00 MiB")));
}

/// The events that a profiler of LibTorch gets.
struct Reporter : c10::MemoryReportingInfoBase {
  struct Report {
    void* at;
    std::int64_t bytes;
    std::size_t allocated, reserved;
  };
  std::vector<Report> usage, ooms;
  bool enabled = true;

  void reportMemoryUsage(void* at, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override {
    if (device == kHpu) usage.push_back({at, bytes, allocated, reserved});
  }
  void reportOutOfMemory(std::int64_t bytes, std::size_t allocated, std::size_t reserved, c10::Device device) override {
    if (device == kHpu) ooms.push_back({nullptr, bytes, allocated, reserved});
  }
  bool memoryProfilingEnabled() const override { return enabled; }
};

TEST(Profilers, HearOfEveryAllocation) {
  const auto reporter = std::make_shared<Reporter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
  const auto in_use = static_cast<std::size_t>(memory_stats().InUse);
  const auto limit = memory_stats().Limit;
  at::Tensor a = at::empty({100}, on_hpu()).zero_();  // of some values (NaN) a second kernel makes the result
  void* const memory = a.storage().mutable_data();
  const at::Tensor b = at::neg(a);
  a = at::Tensor();
  ASSERT_EQ(reporter->usage.size(), 3u);
  const auto& [first, second, third] = std::tie(reporter->usage[0], reporter->usage[1], reporter->usage[2]);
  EXPECT_EQ(first.at, memory);
  EXPECT_EQ(first.bytes, 400);
  EXPECT_EQ(first.allocated, in_use + 400);
  EXPECT_EQ(first.reserved, static_cast<std::size_t>(limit));
  EXPECT_EQ(second.bytes, 400);
  EXPECT_EQ(second.allocated, in_use + 800);
  EXPECT_EQ(third.at, memory);
  EXPECT_EQ(third.bytes, -400);
  EXPECT_EQ(third.allocated, in_use + 400);

  runtime::set_memory_limit(static_cast<std::int64_t>(in_use) + 1000);
  EXPECT_THROW(at::empty({1000}, on_hpu()), c10::OutOfMemoryError);
  runtime::set_memory_limit(limit);
  ASSERT_EQ(reporter->ooms.size(), 1u);
  EXPECT_EQ(reporter->ooms[0].bytes, 4000);
  EXPECT_EQ(reporter->ooms[0].allocated, in_use + 400);
  EXPECT_EQ(reporter->ooms[0].reserved, in_use + 1000);

  reporter->enabled = false;
  const at::Tensor c = at::empty({100}, on_hpu());
  EXPECT_EQ(reporter->usage.size(), 3u);
}

}  // namespace
}  // namespace fp8::test
