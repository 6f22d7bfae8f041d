// SPDX-License-Identifier: Apache-2.0
// The emulated hpu: how many, which kind, which is current.
#pragma once
#include <c10/core/Device.h>

#include "fp8/runtime/kernels/device_kind.h"

namespace fp8::runtime {

using fp8::name_of;
using kernels::DeviceKind;

inline constexpr int kMaxDevices = 16;

/// FP8_HPU_DEVICES, default 1; never invented.
int device_count();

/// The calling thread's current hpu (set by c10::DeviceGuard).
c10::DeviceIndex current_device();

/// FP8_HPU_DEVICE=gaudi|gaudi2|gaudi3 (default gaudi3), or the innermost DeviceKindScope of this thread.
DeviceKind device_kind();

/// The E4M3 dialect of the hpu:: operators: gaudi2 on Gaudi2, else gaudi3 (= ocp numbers). Throws on the first
/// generation.
kernels::Dialect device_dialect(const char* op);

/// Emulates another kind on this thread while it lives: a checkpoint made for Gaudi2 runs with 240 whatever the
/// environment says.
class DeviceKindScope {
 public:
  explicit DeviceKindScope(DeviceKind kind);
  ~DeviceKindScope();
  DeviceKindScope(const DeviceKindScope&) = delete;
  DeviceKindScope& operator=(const DeviceKindScope&) = delete;

 private:
  int previous_;
};

/// Makes sure the library is loaded and registered (for programs whose linker drops unused libraries). Throws if
/// another hpu backend owns the device.
void init();

}  // namespace fp8::runtime
