// SPDX-License-Identifier: Apache-2.0
// Kind, count and current device; the guard that ATen's DeviceGuard and autograd's worker threads use.
#include "fp8/runtime/device/device.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

namespace fp8::runtime {
namespace {

thread_local c10::DeviceIndex g_current = 0;
thread_local int g_kind_override = -1;

DeviceKind kind_from_environment() {
  const char* text = std::getenv("FP8_HPU_DEVICE");
  if (text == nullptr || *text == '\0' || std::strcmp(text, "gaudi3") == 0) return DeviceKind::gaudi3;
  if (std::strcmp(text, "gaudi2") == 0) return DeviceKind::gaudi2;
  if (std::strcmp(text, "gaudi") == 0) return DeviceKind::gaudi;
  TORCH_CHECK(false, "[hpu] FP8_HPU_DEVICE: found \"", text, "\", allowed: gaudi, gaudi2, gaudi3");
}

int count_from_environment() {
  const char* text = std::getenv("FP8_HPU_DEVICES");
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  TORCH_CHECK(*end == '\0' && value >= 1 && value <= kMaxDevices, "[hpu] FP8_HPU_DEVICES: found \"", text,
              "\", allowed: 1 to ", kMaxDevices);
  return static_cast<int>(value);
}

void check_index(c10::Device device) {
  TORCH_CHECK(device.is_hpu() && device.index() < device_count(), "Invalid device id: ", device,
              ", the machine emulates ", device_count(), " hpu");
}

/// Work is done when a call returns, so one default stream serves all and events are always complete.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kHPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {c10::kHPU, g_current}; }
  void setDevice(c10::Device device) const override {
    check_index(device);
    if (device.index() >= 0) g_current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) g_current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return static_cast<c10::DeviceIndex>(device_count());
    } catch (const c10::Error&) {
      return 0;  // a bad FP8_HPU_DEVICES is reported by the first call that may throw
    }
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

/// Two libraries that own the HPU key would answer each other's calls.
const bool registered = [] {
  TORCH_CHECK(!c10::impl::hasDeviceGuardImpl(c10::kHPU),
              "[hpu] another hpu backend is loaded already; load one of the two");
  static Guard guard;
  static c10::impl::DeviceGuardImplRegistrar registrar(c10::kHPU, &guard);
  return true;
}();

}  // namespace

int device_count() {
  static const int count = count_from_environment();
  return count;
}

c10::DeviceIndex current_device() { return g_current; }

DeviceKind device_kind() {
  static const DeviceKind from_environment = kind_from_environment();
  return g_kind_override >= 0 ? static_cast<DeviceKind>(g_kind_override) : from_environment;
}

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::gaudi ? "GAUDI" : kind == DeviceKind::gaudi2 ? "GAUDI2" : "GAUDI3";
}

kernels::Dialect device_dialect(const char* op) {
  const DeviceKind kind = device_kind();
  TORCH_CHECK(kind != DeviceKind::gaudi, "[", op,
              "] fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)");
  return kind == DeviceKind::gaudi2 ? kernels::Dialect::gaudi2 : kernels::Dialect::gaudi3;
}

DeviceKindScope::DeviceKindScope(DeviceKind kind) : previous_(g_kind_override) {
  g_kind_override = static_cast<int>(kind);
}
DeviceKindScope::~DeviceKindScope() { g_kind_override = previous_; }

void init() { (void)registered; }

}  // namespace fp8::runtime
