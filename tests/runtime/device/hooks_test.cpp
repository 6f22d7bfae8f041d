// SPDX-License-Identifier: Apache-2.0
// What ATen knows of the accelerator through HPUHooks.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/HPUHooksInterface.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

TEST(Hooks, AtenSeesTheDevice) {
  EXPECT_TRUE(at::globalContext().hasHPU());
  EXPECT_EQ(at::detail::getHPUHooks().deviceCount(), runtime::device_count());
  EXPECT_TRUE(at::detail::getHPUHooks().isAvailable());
  EXPECT_TRUE(at::detail::getHPUHooks().isBuilt());
  EXPECT_EQ(at::detail::getHPUHooks().getCurrentDevice(), 0);
}

TEST(Hooks, ItIsTheAccelerator) {
  EXPECT_EQ(at::getAccelerator(), at::kHPU);
  EXPECT_EQ(at::accelerator::deviceCount(), runtime::device_count());
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
  EXPECT_NO_THROW(at::accelerator::setDeviceIndex(0));
  EXPECT_NO_THROW(at::accelerator::synchronizeDevice(0));
}

TEST(Hooks, DefaultGeneratorComesThroughTheContext) {
  EXPECT_EQ(at::globalContext().defaultGenerator(kHpu), runtime::default_generator());
  EXPECT_NE(at::detail::getHPUHooks().getNewGenerator(0), runtime::default_generator());
}

TEST(Hooks, PinnedMemoryIsKnownAsSuch) {
  const at::Tensor x = at::arange(1000, at::kFloat);
  EXPECT_FALSE(x.is_pinned());
  const void* freed = nullptr;
  {
    const at::Tensor pinned = x.pin_memory();
    EXPECT_TRUE(pinned.is_pinned());
    EXPECT_TRUE(pinned.narrow(0, 999, 1).is_pinned()) << "a view of its end";
    EXPECT_TRUE(same_bits(pinned, x));
    EXPECT_EQ(pinned.pin_memory().const_data_ptr(), pinned.const_data_ptr()) << "pinned already";
    EXPECT_TRUE(same_bits(pinned.to(kHpu, /*non_blocking=*/true), x));
    EXPECT_TRUE(at::empty({3}, at::TensorOptions().pinned_memory(true)).is_pinned());
    freed = pinned.const_data_ptr();
  }
  EXPECT_FALSE(runtime::is_pinned(freed));
  EXPECT_FALSE(hpu(x).is_pinned());
  EXPECT_TRUE(throws_with({"cannot pin", "only dense CPU tensors"}, [&] { hpu(x).pin_memory(); }))
      << "as on any device";
}

TEST(Hooks, MaybeExchangeIgnoresWhatDoesNotExist) {
  EXPECT_EQ(at::detail::getHPUHooks().maybeExchangeDevice(99), 0);
  EXPECT_EQ(at::detail::getHPUHooks().maybeExchangeDevice(-1), 0);
}

TEST(Hooks, BackwardFindsTheAccelerator) {
  const at::Tensor x = at::ones({3}, on_hpu()).set_requires_grad(true);
  (x * x).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::full({3}, 2.0f)));
  EXPECT_EQ(x.grad().device(), kHpu);
}

TEST(Hooks, AnErrorInBackwardReachesTheCaller) {
  struct Bad : torch::autograd::Function<Bad> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      TORCH_CHECK(false, "backward of Bad");
    }
  };
  const at::Tensor x = at::ones({3}, on_hpu()).set_requires_grad(true);
  EXPECT_TRUE(throws_with({"backward of Bad"}, [&] { Bad::apply(x).sum().backward(); }));
  (x * 3).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::full({3}, 3.0f)));
}

}  // namespace
}  // namespace fp8::test
