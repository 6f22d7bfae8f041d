// SPDX-License-Identifier: Apache-2.0
// Which accelerator is emulated, as far as its formats go. No torch here: runtime/device/device.h has what a thread may
// choose instead.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// The first generation has neither fp8 nor fp16.
enum class DeviceKind : std::uint8_t { gaudi, gaudi2, gaudi3 };
constexpr auto names_of(DeviceKind) {
  using enum DeviceKind;
  return std::to_array<EnumName<DeviceKind>>({{gaudi, "GAUDI"}, {gaudi2, "GAUDI2"}, {gaudi3, "GAUDI3"}});
}

/// FP8_HPU_DEVICE: gaudi, gaudi2, gaudi3 (default). Throws std::invalid_argument naming the variable, what was found
/// and what is allowed.
DeviceKind kind_from_environment();

/// The E4M3 dialect of a kind that has fp8: gaudi3 writes ocp's numbers.
constexpr Dialect dialect_of(DeviceKind kind) { return kind == DeviceKind::gaudi2 ? Dialect::gaudi2 : Dialect::gaudi3; }

/// What is said of a kind without.
inline constexpr char kNoFp8[] = "fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)";

}  // namespace fp8::kernels
