// SPDX-License-Identifier: Apache-2.0
// ATen's questions about the accelerator, which HPUHooks answers; and CUDA, which leaves them to it.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>

#include <cstdlib>

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
  EXPECT_REFUSED(hpu(x).pin_memory(), "cannot pin", "only dense CPU tensors") << "as on any device";
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
  EXPECT_REFUSED(Bad::apply(x).sum().backward(), "backward of Bad");
  (x * 3).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::full({3}, 3.0f)));
}

TEST(Hooks, CapabilitiesAreTheDtypesOfTheDevice) {
  using runtime::DeviceKind;
  for (const DeviceKind kind : {DeviceKind::gaudi, DeviceKind::gaudi3}) {
    const runtime::DeviceKindScope scope(kind);
    std::size_t found = 0, allowed = 0;
    at::accelerator::getDeviceCapability(0).forEachSupportedScalarType([&](at::ScalarType type) {
      ++found;
      EXPECT_TRUE(runtime::takes(type, runtime::DtypeUse::tensors)) << type;
    });
    for (const auto& pair : runtime::kDtypes) allowed += runtime::takes(pair.type, runtime::DtypeUse::tensors) ? 1 : 0;
    EXPECT_EQ(found, allowed);
  }
  EXPECT_REFUSED(at::accelerator::getDeviceCapability(9), "Invalid device id");
}

/// The hooks of a LibTorch that was built for CUDA.
template <int gpus, bool rocm>
struct Cuda final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasROCM() const override { return rocm; }
  int getNumGPUs() const override { return gpus; }
  long versionCuDNN() const override { return 9; }
};

/// Exit code 0 if make_room() returns `room`, and backward is right where it does.
template <class Hooks>
[[noreturn]] void beside_cuda(bool room) {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
    return std::make_unique<Hooks>();
  });
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.isBuilt()) new (const_cast<at::CUDAHooksInterface*>(&hooks)) Hooks;  // the question came before
  const auto accelerator = [] { at::getAccelerator(); };
  bool well = error_of(accelerator).find("Cannot have both") != std::string::npos;
  well = well && runtime::make_room() == room && hooks.isBuilt() != room && error_of(accelerator).empty() == room;
  for (const at::Device device : {at::Device(at::kCPU), kHpu}) {
    if (!well || !room) break;
    const at::Tensor x = at::ones({3}, device).set_requires_grad(true);
    (x * x).sum().backward();
    well = same_bits(x.grad(), at::full({3}, 2.0f)) && runtime::make_room();
  }
  if (room)
    well = well && hooks.versionCuDNN() == 9 && error_of([&] { hooks.init(); }).find("found none") != std::string::npos;
  std::_Exit(well ? 0 : 1);
}

TEST(HooksDeathTest, CudaMakesRoomWhereItSeesNoGpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto well = ::testing::ExitedWithCode(0);
  EXPECT_EXIT((beside_cuda<Cuda<0, false>>(true)), well, "");
  EXPECT_EXIT((beside_cuda<Cuda<1, false>>(false)), well, "");
  EXPECT_EXIT((beside_cuda<Cuda<0, true>>(false)), well, "") << "ROCm's hooks are of another class";
}

}  // namespace
}  // namespace fp8::test
