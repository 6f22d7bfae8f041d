// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/hooks.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <memory>
#include <new>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {
namespace {

/// ATen makes the hooks at its first question, once for all. Those that are made already give their place to another
/// object, which ATen finds as it found them. Hooks have no members, so nothing is lost.
template <class Hooks, class Interface>
void take_the_place_of(const Interface& made) {
  static_assert(sizeof(Hooks) == sizeof(void*), "it takes the place of any object with virtual functions");
  new (const_cast<Interface*>(&made)) Hooks;
}

struct HPUHooks final : at::HPUHooksInterface {
  void init() const override {}
  bool hasHPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { guard()->setDevice({c10::kHPU, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard()->exchangeDevice({c10::kHPU, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 || index >= device_count() ? current_device() : exchangeDevice(index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kHPU, current_device()}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }

 private:
  static const c10::impl::DeviceGuardImplInterface* guard() { return c10::impl::getDeviceGuardImpl(c10::kHPU); }
};

std::unique_ptr<at::HPUHooksInterface> make_hooks(at::HPUHooksArgs) { return std::make_unique<HPUHooks>(); }

/// Not REGISTER_HPU_HOOKS: the registry ends the process where the key is taken. The key must be exactly "HPUHooks":
/// with another one nothing fails until the first backward.
[[maybe_unused]] const bool g_hooks_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&make_hooks))) return false;
  at::HPUHooksRegistry()->Register("HPUHooks", &make_hooks);
  const auto& hooks = at::detail::getHPUHooks();
  if (!hooks.isBuilt()) take_the_place_of<HPUHooks>(hooks);  // a backward, say, came before this library
  return true;
}();

constexpr const char* kCuda = "CUDAHooks";

/// CUDA's hooks of a LibTorch for the CPU, but for the error that a user meets and the versions that programs print.
struct NoCuda final : at::CUDAHooksInterface {
  void init() const override {
    TORCH_CHECK(false, "[cuda] expected a GPU when fp8 was loaded, found none: the accelerator of this process is hpu");
  }
  long versionCuDNN() const override { return built().versionCuDNN(); }
  long versionRuntimeCuDNN() const override { return built().versionRuntimeCuDNN(); }
  long versionCUDART() const override { return built().versionCUDART(); }

 private:
  static const at::CUDAHooksInterface& built() {
    static const auto& hooks = *at::CUDAHooksRegistry()->Create(kCuda, {}).release();
    return hooks;
  }
};

}  // namespace

bool make_room() {
  if (!at::CUDAHooksRegistry()->Has(kCuda)) return true;  // no question: CUDA might be loaded later
  const auto& cuda = at::detail::getCUDAHooks();
  if (!cuda.isBuilt()) return true;
  if (cuda.hasROCM() || cuda.getNumGPUs() > 0 || dynamic_cast<const void*>(&cuda) != &cuda) return false;
  take_the_place_of<NoCuda>(cuda);
  return !at::detail::getCUDAHooks().isBuilt();
}

}  // namespace fp8::runtime
