// SPDX-License-Identifier: Apache-2.0
// What ATen asks an accelerator: is it there, how many, its generator. The registry's key must be exactly "HPUHooks":
// with another one nothing fails until the first backward.
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/generator.h"
#include "fp8/runtime/device/pinned.h"
#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {

struct HPUHooks final : at::HPUHooksInterface {
  explicit HPUHooks(at::HPUHooksArgs) {}
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

namespace {

std::unique_ptr<at::HPUHooksInterface> make_hooks(at::HPUHooksArgs arguments) {
  return std::make_unique<HPUHooks>(arguments);
}

/// Not REGISTER_HPU_HOOKS: the registry ends the process where the key is taken.
[[maybe_unused]] const bool g_hooks_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&make_hooks))) return false;
  at::HPUHooksRegistry()->Register("HPUHooks", &make_hooks);
  return true;
}();

}  // namespace

}  // namespace fp8::runtime
