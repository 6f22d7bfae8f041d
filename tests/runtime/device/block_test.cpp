// SPDX-License-Identifier: Apache-2.0
// Two StorageImpls on one allocation: aliases share the bytes, fresh tensors move in without a copy, foreign memory
// works.
#include "fp8/runtime/device/block.h"

#include "fp8/runtime/device/allocator.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

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
