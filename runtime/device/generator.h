// SPDX-License-Identifier: Apache-2.0
// Random numbers on hpu are the CPU's: the default generator wraps the CPU's default one, so torch::manual_seed (which
// knows nothing of hpu) seeds both, and randn or dropout give the same numbers on either device.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace fp8::runtime {

const at::Generator& default_generator(c10::DeviceIndex device = -1);
/// A new one with its own state, default seed.
at::Generator make_generator(c10::DeviceIndex device = -1);
/// The CPU generator below an hpu one; others are returned as they are.
at::Generator cpu_generator(const at::Generator& generator);

}  // namespace fp8::runtime
