// SPDX-License-Identifier: Apache-2.0
// What ATen asks an accelerator: is it there, how many, its generator. The class must be called exactly HPUHooks: the
// registry key is the class name, and with another one nothing fails until the first backward.
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/generator.h"

namespace fp8::runtime {

using at::HPUHooksRegistry;
using at::RegistererHPUHooksRegistry;

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
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kHPU, current_device()}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }

 private:
  static const c10::impl::DeviceGuardImplInterface* guard() { return c10::impl::getDeviceGuardImpl(c10::kHPU); }
};

REGISTER_HPU_HOOKS(HPUHooks);

}  // namespace fp8::runtime
