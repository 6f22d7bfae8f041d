// SPDX-License-Identifier: Apache-2.0
// The books of the emulated memory: the ten statistics, the limit, the printed summary. Sizes are counted by hand here.
#include "fp8/runtime/device/allocator.h"

#include "fp8/runtime/device/large_blocks.h"
#include "support/child.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::memory_stats;

/// Restores the limit, so that the cases stay independent when they run in one process.
class LimitScope {
 public:
  explicit LimitScope(std::int64_t room) : previous_(memory_stats().Limit) {
    runtime::set_memory_limit(memory_stats().InUse + room);
  }
  ~LimitScope() { runtime::set_memory_limit(previous_); }

 private:
  std::int64_t previous_;
};

TEST(MemoryStats, TheTenNumbersFollowTwoTensors) {
  const auto before = memory_stats();
  runtime::reset_peak_memory_stats();
  at::Tensor a = at::empty({1000}, on_hpu());                  // 4000 bytes
  at::Tensor b = at::empty({300, 10}, on_hpu(at::kBFloat16));  // 6000 bytes
  auto now = memory_stats();
  EXPECT_EQ(now.InUse, before.InUse + 10000);
  EXPECT_EQ(now.MaxInUse, before.InUse + 10000);
  EXPECT_EQ(now.NumAllocs, before.NumAllocs + 2);
  EXPECT_EQ(now.NumFrees, before.NumFrees);
  EXPECT_EQ(now.ActiveAllocs, before.ActiveAllocs + 2);
  EXPECT_EQ(now.MaxAllocSize, 6000);
  EXPECT_EQ(now.TotalSystemAllocs, before.TotalSystemAllocs + 2);
  EXPECT_EQ(now.TotalSystemFrees, before.TotalSystemFrees);
  EXPECT_EQ(now.TotalActiveAllocs, before.TotalActiveAllocs + 2);
  EXPECT_EQ(now.Limit, before.Limit);
  b = at::Tensor();
  now = memory_stats();
  EXPECT_EQ(now.InUse, before.InUse + 4000);
  EXPECT_EQ(now.MaxInUse, before.InUse + 10000);
  EXPECT_EQ(now.NumFrees, before.NumFrees + 1);
  EXPECT_EQ(now.ActiveAllocs, before.ActiveAllocs + 1);
  EXPECT_EQ(now.TotalSystemFrees, before.TotalSystemFrees + 1);
}

TEST(MemoryStats, ResultsOfCpuKernelsAreBooked) {
  const at::Tensor a = at::ones({512}, on_hpu());
  const auto before = memory_stats();
  const at::Tensor b = at::relu(a);
  EXPECT_EQ(memory_stats().InUse, before.InUse + 2048);
  EXPECT_EQ(memory_stats().ActiveAllocs, before.ActiveAllocs + 1);
}

TEST(MemoryLimit, IsAskedBeforeTheHostAllocates) {
  const at::Tensor column = at::ones({16384, 1}, on_hpu()), row = at::ones({1, 16384}, on_hpu());
  const auto before = memory_stats();
  const std::int64_t peak = peak_memory();
  const LimitScope limit(1 << 20);
  EXPECT_THROW(at::add(column, row), c10::OutOfMemoryError);  // 1 GiB, by a CPU kernel
  at::Tensor out = at::full({3}, 7, on_hpu());
  const void* memory = out.const_data_ptr();
  EXPECT_THROW(at::add_out(out, column, row), c10::OutOfMemoryError);
  EXPECT_LT(peak_memory(), peak + (std::int64_t{256} << 20)) << "the host gave what the device had no room for";
  EXPECT_EQ(memory_stats().InUse, before.InUse + 12);
  EXPECT_EQ(out.const_data_ptr(), memory);
  EXPECT_TRUE(same_bits(out + 1, at::full({3}, 8.0f)));
  EXPECT_TRUE(same_bits(at::add_out(out, at::ones({5}, on_hpu()), 1), at::full({5}, 2.0f))) << "what fits still grows";
}

TEST(MemoryLimit, AFailedResizeLeavesTheTensorAsItWas) {
  at::Tensor a = at::arange(12, on_hpu()).reshape({3, 4}).t();
  const at::Tensor expected = a.cpu();
  const LimitScope limit(1 << 20);
  EXPECT_THROW(a.resize_({1 << 20}), c10::OutOfMemoryError);
  EXPECT_EQ(a.sizes(), (at::IntArrayRef{4, 3}));
  EXPECT_EQ(a.strides(), (at::IntArrayRef{1, 4}));
  EXPECT_TRUE(same_bits(a, expected));
}

TEST(MemoryLimit, AFailedOutLeavesTheOthersAsTheyWere) {
  const at::Tensor x = at::ones({1 << 16, 1}, on_hpu());
  at::Tensor values = at::full({2}, 5, on_hpu()), indices = at::full({2}, 6, on_hpu(at::kLong));
  const LimitScope limit(400 << 10);  // for 256 KiB of values, not for 512 KiB of indices
  EXPECT_THROW(at::max_out(values, indices, x, 1), c10::OutOfMemoryError);
  EXPECT_EQ(values.sizes(), (at::IntArrayRef{2}));
  values.fill_(9);
  EXPECT_TRUE(same_bits(values * 2, at::full({2}, 18.0f)));
  EXPECT_EQ(values.const_data_ptr<float>()[1], 9.0f) << "tensor and alias are the same memory";
  EXPECT_TRUE(same_bits(indices, at::full({2}, 6, at::kLong)));
}

TEST(MemoryStats, ViewsCostNothing) {
  const at::Tensor a = at::ones({64, 64}, on_hpu());
  const auto before = memory_stats();
  const at::Tensor t = a.t(), row = a[3], flat = a.view(-1), half = a.narrow(0, 0, 32),
                   expanded = row.expand({100, 64});
  EXPECT_EQ(memory_stats().InUse, before.InUse);
  EXPECT_EQ(memory_stats().NumAllocs, before.NumAllocs);
}

TEST(MemoryStats, ZeroBytesAreNoAllocation) {
  const auto before = memory_stats();
  const at::Tensor a = at::empty({0, 7}, on_hpu()), b = at::relu(a);
  EXPECT_EQ(memory_stats().InUse, before.InUse);
  EXPECT_EQ(memory_stats().ActiveAllocs, before.ActiveAllocs);
}

TEST(MemoryStats, ResetsKeepWhatIsInUse) {
  const at::Tensor a = at::empty({100}, on_hpu());
  { const at::Tensor big = at::empty({100000}, on_hpu()); }
  const auto before = memory_stats();
  runtime::reset_peak_memory_stats();
  EXPECT_EQ(memory_stats().MaxInUse, before.InUse);
  runtime::reset_accumulated_memory_stats();
  EXPECT_EQ(memory_stats().NumAllocs, 0);
  EXPECT_EQ(memory_stats().NumFrees, 0);
  EXPECT_EQ(memory_stats().InUse, before.InUse);
  EXPECT_EQ(memory_stats().ActiveAllocs, before.ActiveAllocs);
  EXPECT_EQ(memory_stats().TotalSystemAllocs, before.TotalSystemAllocs);
}

TEST(MemoryStats, ACopyToTheHostIsNotBooked) {
  const at::Tensor a = at::ones({4096}, on_hpu());
  const auto before = memory_stats();
  const at::Tensor host = a.cpu();
  EXPECT_EQ(memory_stats().InUse, before.InUse);
}

TEST(MemoryStats, UpstreamsInterfaceReadsTheSameBooks) {
  const at::Tensor a = at::empty({256}, on_hpu());
  auto* allocator = c10::getDeviceAllocator(at::kHPU);
  const auto mine = memory_stats();
  const auto theirs = allocator->getDeviceStats(0);
  EXPECT_EQ(theirs.allocated_bytes[0].current, mine.InUse);
  EXPECT_EQ(theirs.allocated_bytes[0].peak, mine.MaxInUse);
  EXPECT_EQ(theirs.allocation[0].current, mine.ActiveAllocs);
  const auto [free_bytes, total] = allocator->getMemoryInfo(0);
  EXPECT_EQ(static_cast<std::int64_t>(total), mine.Limit);
  EXPECT_EQ(static_cast<std::int64_t>(free_bytes), mine.Limit - mine.InUse);
}

TEST(MemoryStats, ADeviceThatDoesNotExistIsNamed) {
  EXPECT_REFUSED(memory_stats(1), "Invalid device id 1", "emulates 1");
  EXPECT_REFUSED(memory_stats(-1), "Invalid device id -1");
  EXPECT_REFUSED(runtime::reset_peak_memory_stats(99), "Invalid device id 99");
}

TEST(MemoryLimit, DefaultIsTheMachinesMemory) {
  if (std::getenv("FP8_HPU_MEMORY") != nullptr) GTEST_SKIP() << "FP8_HPU_MEMORY is set";
  EXPECT_EQ(memory_stats().Limit, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE));
}

TEST(MemoryLimit, EmptyThrowsOutOfMemoryAndAllStaysUsable) {
  const at::Tensor a = at::ones({1000}, on_hpu());
  const LimitScope limit(100000);
  const auto before = memory_stats();
  const auto ooms = c10::getDeviceAllocator(at::kHPU)->getDeviceStats(0).num_ooms;
  EXPECT_THROW(at::empty({50000}, on_hpu()), c10::OutOfMemoryError);
  EXPECT_REFUSED(at::empty({50000}, on_hpu()), "out of memory on hpu:0", "tried to allocate 200000 bytes");
  EXPECT_EQ(memory_stats().InUse, before.InUse);
  EXPECT_EQ(memory_stats().NumAllocs, before.NumAllocs);
  EXPECT_EQ(at::sum(a + a).item<float>(), 2000.0f);
  EXPECT_EQ(c10::getDeviceAllocator(at::kHPU)->getDeviceStats(0).num_ooms, ooms + 2);
}

TEST(MemoryLimit, AResultOverTheLimitThrowsAndLeavesTheBooksRight) {
  const at::Tensor a = at::ones({1, 20000}, on_hpu()), b = at::ones({100, 1}, on_hpu());
  const auto before = memory_stats();
  {
    const LimitScope limit(1000000);
    EXPECT_THROW(at::add(a, b), c10::OutOfMemoryError);  // 8 MB
    EXPECT_EQ(memory_stats().InUse, before.InUse);
  }
  EXPECT_EQ(at::add(a, b).sum().item<float>(), 4e6f);
  EXPECT_EQ(memory_stats().InUse, before.InUse);
}

TEST(MemoryLimit, AResizedOutOverTheLimitThrowsAndLeavesTheBooksRight) {
  const at::Tensor a = at::ones({50000}, on_hpu());
  at::Tensor out = at::empty({0}, on_hpu());
  const auto before = memory_stats();
  {
    const LimitScope limit(1000);
    EXPECT_THROW(at::abs_out(out, a), c10::OutOfMemoryError);
    EXPECT_THROW(out.resize_({50000}), c10::OutOfMemoryError);
    EXPECT_EQ(memory_stats().InUse, before.InUse);
    EXPECT_EQ(memory_stats().ActiveAllocs, before.ActiveAllocs);
  }
  at::Tensor fresh = at::empty({0}, on_hpu());
  at::abs_out(fresh, a);
  EXPECT_EQ(fresh.sum().item<float>(), 50000.0f);
}

TEST(MemoryLimit, MustBePositive) { EXPECT_REFUSED(runtime::set_memory_limit(0), "expected bytes > 0, got 0"); }

TEST(Memory, LargeTensorsAreReadableAtBothEnds) {
  const std::int64_t n = (std::int64_t{5} << 20) + 3;  // above the size from which memory comes in huge pages
  at::Tensor a = at::zeros({n}, on_hpu(at::kByte));
  a[0].fill_(1);
  a[n - 1].fill_(2);
  EXPECT_EQ(a.sum().item<std::int64_t>(), 3);
}

/// While it lives so many bytes of freed tensors are kept.
struct Keeping {
  explicit Keeping(std::size_t most) { runtime::keep_large_blocks(most); }
  ~Keeping() { runtime::keep_large_blocks(0); }
  Keeping& operator=(Keeping&&) = delete;
};

TEST(LargeBlocks, TheNextOfItsSizeHasTheMemoryOfAFreedOne) {
  const Keeping keeping(std::size_t{64} << 20);
  const std::int64_t n = (std::int64_t{6} << 20) + 5;
  const auto before = memory_stats();
  at::Tensor a = at::ones({n}, on_hpu(at::kByte));
  EXPECT_EQ(runtime::kept_bytes(), 0u);
  const void* memory = a.const_data_ptr();
  a = at::Tensor();
  EXPECT_EQ(memory_stats().InUse, before.InUse) << "what is kept is no tensor's";
  EXPECT_EQ(memory_stats().NumFrees, before.NumFrees + 1);
  EXPECT_EQ(runtime::kept_bytes(), static_cast<std::size_t>(n));
  const at::Tensor other = at::zeros({n - (1 << 20)}, on_hpu(at::kByte)), zeros = at::zeros({n - 9}, on_hpu(at::kByte));
  EXPECT_NE(other.const_data_ptr(), memory) << "a sixth of it would lie idle";
  EXPECT_EQ(zeros.const_data_ptr(), memory);
  EXPECT_EQ(zeros.sum().item<std::int64_t>(), 0);
  EXPECT_EQ(memory_stats().InUse, before.InUse + 2 * n - (1 << 20) - 9);
  EXPECT_EQ(runtime::kept_bytes(), 0u);
}

TEST(LargeBlocks, AreTheHostsAgainWhereAskedAndWhereTheLimitHasNoRoom) {
  const auto free_two = [] {
    for (const std::int64_t megabytes : {8, 16}) at::empty({megabytes << 20}, on_hpu(at::kByte));
  };
  free_two();
  EXPECT_EQ(runtime::kept_bytes(), 0u) << "nothing is kept unless somebody wants it";
  const Keeping keeping(std::size_t{64} << 20);
  free_two();
  EXPECT_EQ(runtime::kept_bytes(), std::size_t{24} << 20);
  runtime::hpu_allocator()->emptyCache({0, 0});
  EXPECT_EQ(runtime::kept_bytes(), 0u);
  free_two();
  const LimitScope limit(std::int64_t{44} << 20);
  const at::Tensor larger = at::empty({24 << 20}, on_hpu(at::kByte));
  EXPECT_EQ(runtime::kept_bytes(), std::size_t{16} << 20) << "20 MiB are left, and the 8 MiB were kept longest";
}

TEST(LargeBlocks, KeptOnesAreBounded) {
  const Keeping keeping(std::size_t{50} << 20);
  {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(at::empty({20 << 20}, on_hpu(at::kByte)));
    tensors.push_back(at::empty({60 << 20}, on_hpu(at::kByte)));
  }
  EXPECT_EQ(runtime::kept_bytes(), std::size_t{40} << 20);
  runtime::keep_large_blocks(std::size_t{30} << 20);
  EXPECT_EQ(runtime::kept_bytes(), std::size_t{20} << 20);
  runtime::keep_large_blocks(0);
  EXPECT_EQ(runtime::kept_bytes(), 0u);
}

TEST(MemorySummary, HasTheVendorsRows) {
  const std::string text = runtime::memory_summary();
  EXPECT_EQ(text.rfind("|" + std::string(52, '=') + "|\n|     PyTorch HPU memory summary, device ID 0", 0), 0u) << text;
  for (const char* row :
       {"Limit (GB)", "InUse (MB)", "MaxInUse (MB)", "NumAllocs", "NumFrees", "MaxAllocSize (MB)", "ActiveAllocs"})
    EXPECT_THAT(text, HasSubstr(std::string("  ") + row)) << row;
  EXPECT_REFUSED(runtime::memory_summary(3), "Invalid device id");
}

TEST(Memory, AThousandStepsLeakNothing) {
  torch::manual_seed(1);
  auto model = torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
  model->to(kHpu);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const at::Tensor x = at::randn({4, 8}, on_hpu());
  const auto step = [&] {
    optimizer.zero_grad();
    model->forward(x).square().mean().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step();
  const auto start = memory_stats();
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(memory_stats().InUse, start.InUse);
  EXPECT_EQ(memory_stats().ActiveAllocs, start.ActiveAllocs);
}

// Two StorageImpls on one allocation: aliases share the bytes, fresh tensors move in without a copy, foreign memory
// works.

TEST(CpuAlias, SharesBytesAndGeometry) {
  at::Tensor a = at::arange(24, on_hpu()).view({4, 6}).t().narrow(0, 1, 3);
  at::Tensor alias = runtime::cpu_alias(a);
  EXPECT_TRUE(alias.device().is_cpu());
  EXPECT_EQ(alias.const_data_ptr(), a.const_data_ptr());
  EXPECT_EQ(alias.sizes(), a.sizes());
  EXPECT_EQ(alias.strides(), a.strides());
  EXPECT_EQ(alias.storage_offset(), 1);
  alias.fill_(7);
  EXPECT_EQ(a.sum().item<float>(), 7.0f * 12);
  EXPECT_EQ(a.storage().nbytes(), 24u * 4);
}

TEST(CpuAlias, IsOneStoragePerBlock) {
  const at::Tensor a = at::zeros({4}, on_hpu());
  EXPECT_EQ(runtime::cpu_alias(a).storage().unsafeGetStorageImpl(),
            runtime::cpu_alias(a.view({2, 2})).storage().unsafeGetStorageImpl());
}

TEST(SamePlace, ComparesAddresses) {
  const at::Tensor a = at::zeros({4, 6}, on_hpu()), host = at::zeros({4, 6});
  EXPECT_TRUE(runtime::same_place(a, a.view({6, 4})));
  EXPECT_TRUE(runtime::same_place(a, runtime::cpu_alias(a))) << "two storages, one memory";
  EXPECT_TRUE(runtime::same_place(host, at::from_blob(host.mutable_data_ptr(), {3})));
  EXPECT_TRUE(runtime::same_place(a.narrow(0, 1, 2), a.narrow(0, 1, 1)));
  EXPECT_FALSE(runtime::same_place(a, a.narrow(0, 1, 2)));
  EXPECT_FALSE(runtime::same_place(a, host));
}

TEST(CpuAlias, LeavesOthersAsTheyAre) {
  const at::Tensor cpu = at::zeros({4});
  EXPECT_EQ(runtime::cpu_alias(cpu).unsafeGetTensorImpl(), cpu.unsafeGetTensorImpl());
  EXPECT_FALSE(runtime::cpu_alias(at::Tensor()).defined());
}

TEST(Adopt, MovesMemoryWithoutACopy) {
  const at::Tensor fresh = at::arange(6, at::kFloat);
  const void* memory = fresh.const_data_ptr();
  const auto before = runtime::memory_stats();
  runtime::adopt(fresh, 0);
  EXPECT_EQ(fresh.device(), kHpu);
  EXPECT_EQ(fresh.const_data_ptr(), memory);
  EXPECT_EQ(runtime::memory_stats().InUse, before.InUse + 24);
  EXPECT_EQ((fresh * 2).sum().item<float>(), 30.0f);
  EXPECT_NE(runtime::block_of(fresh), nullptr);
}

TEST(Adopt, OverTheLimitLeavesTheCpuTensorWhole) {
  const at::Tensor fresh = at::ones({1000});
  const auto before = runtime::memory_stats();
  runtime::set_memory_limit(before.InUse + 100);
  EXPECT_THROW(runtime::adopt(fresh, 0), c10::OutOfMemoryError);
  runtime::set_memory_limit(before.Limit);
  EXPECT_EQ(runtime::memory_stats().InUse, before.InUse);
  EXPECT_TRUE(fresh.device().is_cpu());
  EXPECT_EQ(fresh.sum().item<float>(), 1000.0f);
}

TEST(BlockOf, IsNullForMemoryThatIsNotOurs) {
  EXPECT_EQ(runtime::block_of(at::zeros({3})), nullptr);
  EXPECT_EQ(runtime::block_of(at::Tensor()), nullptr);
  float numbers[6] = {1, 2, 3, 4, 5, 6};
  const at::Tensor foreign = torch::from_blob(numbers, {2, 3}, on_hpu());
  EXPECT_EQ(runtime::block_of(foreign), nullptr);
}

TEST(FromBlob, ForeignMemoryIsReadAndWrittenInPlace) {
  float numbers[6] = {1, 2, 3, 4, 5, 6};
  at::Tensor foreign = torch::from_blob(numbers, {2, 3}, on_hpu());
  EXPECT_EQ(foreign.device(), kHpu);
  EXPECT_TRUE(same_bits(foreign * 2, at::tensor({2., 4., 6., 8., 10., 12.}, at::kFloat).view({2, 3})));
  foreign.add_(1);
  EXPECT_EQ(numbers[5], 7.0f);
  EXPECT_TRUE(same_bits(foreign.t()[2], at::tensor({4., 7.}, at::kFloat)));
  EXPECT_TRUE(same_bits(foreign.cpu().flatten(), torch::from_blob(numbers, {6})));
}

TEST(FromBlob, CallsItsDeleterOnce) {
  std::vector<float> numbers(4, 1.0f);
  int deleted = 0;
  {
    const at::Tensor foreign = torch::from_blob(numbers.data(), {4}, [&](void*) { ++deleted; }, on_hpu());
    EXPECT_EQ(foreign.sum().item<float>(), 4.0f);
  }
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace fp8::test
