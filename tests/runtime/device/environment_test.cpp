// SPDX-License-Identifier: Apache-2.0
// FP8_HPU_DEVICES, FP8_HPU_MEMORY and FP8_HPU_DEVICE, read once per process: here 3 devices of 64 MiB, kind gaudi2.
#include <ATen/DeviceAccelerator.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/kernels/simd.h"
#include "support/hpu_test.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

const bool g_environment = [] {
  setenv("FP8_HPU_DEVICES", "3", 1);
  setenv("FP8_HPU_MEMORY", "64M", 1);
  setenv("FP8_HPU_DEVICE", "gaudi2", 1);
  return true;
}();

at::Device device(int index) { return {at::kHPU, static_cast<c10::DeviceIndex>(index)}; }

TEST(Environment, IsWhatTheDeviceSays) {
  ASSERT_TRUE(g_environment);
  EXPECT_EQ(runtime::device_count(), 3);
  EXPECT_EQ(at::accelerator::deviceCount(), 3);
  EXPECT_EQ(runtime::device_kind(), runtime::DeviceKind::gaudi2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(runtime::memory_stats(i).Limit, std::int64_t{64} << 20);
  EXPECT_REFUSED(runtime::memory_stats(3), "Invalid device id 3");
}

TEST(Environment, LimitThrowsOutOfMemory) {
  EXPECT_THROW(at::empty({17 << 20}, on_hpu()), c10::OutOfMemoryError);
  EXPECT_NO_THROW(at::empty({15 << 20}, on_hpu()));
}

/// "gaudi2, environment" of the thread that asks.
std::string flag(const char* name) {
  const io::Flag flag = io::RuntimeFlags::from_env()[name];
  return flag.value + ", " + flag.source_text();
}

TEST(Flags, OfTheDeviceAndOfWhoOverridesIt) {
  EXPECT_EQ(flag("FP8_HPU_DEVICES"), "3, environment");
  EXPECT_EQ(flag("FP8_HPU_DEVICE"), "gaudi2, environment");
  {
    const runtime::DeviceKindScope scope(runtime::DeviceKind::gaudi3);
    EXPECT_EQ(flag("FP8_HPU_DEVICE"), "gaudi3, call: DeviceKindScope");
    std::string elsewhere;
    std::thread([&] { elsewhere = flag("FP8_HPU_DEVICE"); }).join();
    EXPECT_EQ(elsewhere, "gaudi2, environment");
  }
  EXPECT_EQ(flag("FP8_HPU_DEVICE"), "gaudi2, environment");
  EXPECT_EQ(flag("FP8_HPU_MEMORY"), "64M, environment");
  EXPECT_REFUSED(runtime::set_memory_limit(0), "[set_memory_limit]");
  EXPECT_EQ(flag("FP8_HPU_MEMORY"), "64M, environment");
  runtime::set_memory_limit(std::int64_t{64} << 20, 1);
  EXPECT_EQ(flag("FP8_HPU_MEMORY"), "67108864, call: set_memory_limit() of hpu:1");
}

TEST(Flags, OfKernelsAndAutocast) {
  within(kernels::ScopedSimdLevel(kernels::SimdLevel::scalar),
         [&] { EXPECT_EQ(flag("FP8_SIMD"), "scalar, call: ScopedSimdLevel"); });
  EXPECT_THAT(flag("FP8_SIMD"), Not(HasSubstr("call")));
  const std::string lists = flag("LOWER_LIST");
  {
    auto other = runtime::autocast::lists();
    other.lower = {"mm", "bmm"};
    const runtime::autocast::ListsGuard guard(other);
    EXPECT_EQ(flag("LOWER_LIST"), "mm, bmm, call: set_lists()");
    EXPECT_EQ(flag("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST"), "mm, bmm, call: set_lists()");
    EXPECT_THAT(flag("FP32_LIST"), Not(HasSubstr("call")));
  }
  EXPECT_EQ(flag("LOWER_LIST"), lists);
}

TEST(ManyDevices, EachHasItsOwnBooks) {
  const auto first = runtime::memory_stats(0), third = runtime::memory_stats(2);
  const at::Tensor a = at::ones({1000}, at::TensorOptions().device(device(2)));
  EXPECT_EQ(a.device(), device(2));
  EXPECT_EQ(runtime::memory_stats(0).InUse, first.InUse);
  EXPECT_EQ(runtime::memory_stats(2).InUse, third.InUse + 4000);
  const at::Tensor b = a + a;
  EXPECT_EQ(b.device(), device(2));
  EXPECT_EQ(runtime::memory_stats(2).InUse, third.InUse + 8000);
}

TEST(ManyDevices, GuardChoosesWhereThingsGo) {
  EXPECT_EQ(at::empty({1}, at::kHPU).device(), device(0));
  {
    const c10::DeviceGuard guard(device(1));
    EXPECT_EQ(runtime::current_device(), 1);
    EXPECT_EQ(at::empty({1}, at::kHPU).device(), device(1));
    EXPECT_EQ(at::randn({4}, at::kHPU).device(), device(1));
  }
  EXPECT_EQ(runtime::current_device(), 0);
}

TEST(ManyDevices, OpsDoNotMixThem) {
  const at::Tensor a = at::ones({2}, at::TensorOptions().device(device(0))),
                   b = at::ones({2}, at::TensorOptions().device(device(1)));
  EXPECT_REFUSED(at::add(a, b), "on the same device", "hpu:0", "hpu:1");
  EXPECT_TRUE(same_bits(a + b.to(device(0)), at::full({2}, 2.0f)));
}

TEST(ManyDevices, OperatorsAndConvertedModulesDoNotMixThem) {
  const auto codes = [](int index) { return at::ones({2, 4}).to(at::kFloat8_e4m3fn).to(device(index)); };
  const auto gemm = c10::Dispatcher::singleton().findSchemaOrThrow("hpu::fp8_gemm_v2", "");
  const auto multiply = [&](int a, int b, const c10::IValue& scale) {
    torch::jit::Stack args{
        codes(a), false,         codes(b),      true,  c10::IValue(), static_cast<std::int64_t>(at::kFloat),
        scale,    c10::IValue(), c10::IValue(), false, c10::IValue()};
    gemm.callBoxed(args);
    return args[0].toTensor();
  };
  EXPECT_REFUSED(multiply(1, 2, {}), "on the same device", "hpu:1", "hpu:2", "hpu::fp8_gemm_v2");
  EXPECT_REFUSED(multiply(1, 1, at::ones({1}, at::TensorOptions().device(device(0)))), "on the same device", "hpu:1",
                 "hpu:0");
  EXPECT_EQ(multiply(2, 2, {}).device(), device(2));
  at::Tensor w = at::ones({2, 4}, on_hpu());
  convert_to_codes(w, "fc1", std::make_shared<CodesHandler>(0.5), 0.5);
  const ScopedVariable flag("FP8_HPU_MOVE_HOST_OPERANDS", "1");  // moves from the host, not from another device
  EXPECT_REFUSED(at::linear(at::ones({1, 4}, at::TensorOptions().device(device(1))), w), "on the same device", "hpu:0",
                 "hpu:1");
}

TEST(ManyDevices, CopiesGoBetweenThem) {
  const at::Tensor a = at::arange(10, at::TensorOptions().device(device(1)).dtype(at::kFloat));
  const at::Tensor b = a.to(device(2));
  EXPECT_EQ(b.device(), device(2));
  EXPECT_NE(b.const_data_ptr(), a.const_data_ptr());
  EXPECT_TRUE(same_bits(b, a));
}

TEST(ManyDevices, ResizeStaysOnTheTensorsDevice) {
  at::Tensor a = at::empty({2}, at::TensorOptions().device(device(1)));
  const auto before = runtime::memory_stats(1);
  a.resize_({100});
  EXPECT_EQ(runtime::memory_stats(1).InUse, before.InUse - 8 + 400);
  EXPECT_EQ(a.storage().device(), device(1));
}

TEST(ManyDevices, TrainingRunsOnTheSecond) {
  torch::nn::Linear layer(4, 2);
  layer->to(device(1));
  const at::Tensor x = at::ones({3, 4}, at::TensorOptions().device(device(1)));
  layer(x).sum().backward();
  EXPECT_EQ(layer->weight.grad().device(), device(1));
  EXPECT_TRUE(same_bits(layer->weight.grad(), at::full({2, 4}, 3.0f)));
}

TEST(ManyDevices, EachHasAGenerator) {
  EXPECT_EQ(at::globalContext().defaultGenerator(device(2)).device(), device(2));
  torch::manual_seed(3);
  const at::Tensor cpu = at::randn({6});
  torch::manual_seed(3);
  EXPECT_TRUE(same_bits(at::randn({6}, at::TensorOptions().device(device(2))), cpu));
}

}  // namespace
}  // namespace fp8::test
