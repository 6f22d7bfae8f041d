// SPDX-License-Identifier: Apache-2.0
// The environment variables that decide what the device is and how it rounds. Each reader throws c10::Error naming the
// variable, what was found and what is allowed; unset and empty mean the default.
#pragma once
#include <cstdint>
#include <optional>

#include "fp8/runtime/device/device.h"

namespace fp8::runtime {

/// FP8_HPU_DEVICE: gaudi, gaudi2, gaudi3 (default).
DeviceKind kind_from_environment();
/// FP8_HPU_DEVICES: 1 (default) to kMaxDevices.
int count_from_environment();
/// FP8_HPU_MEMORY: bytes per device, K, M or G may follow; default: the machine's memory.
std::int64_t memory_limit_from_environment();
/// PT_HPU_STOCHASTIC_ROUNDING_MODE: 1 (default) rounds stochastically below the smallest number too, 0 flushes there.
bool stochastic_rounding_flushes();
/// PT_TE_FORCE_SR_BWD: 1, 0, true, false; nothing: the recipe decides.
std::optional<bool> forced_stochastic_gradients();

/// FP8_HPU_MOVE_HOST_OPERANDS: 1, or 0 (the default). Asked at each call with operands on both sides.
bool moves_host_operands();

}  // namespace fp8::runtime
