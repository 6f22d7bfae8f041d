// SPDX-License-Identifier: Apache-2.0
// fp8 doctor --device: the emulated accelerator, and the table of dtypes (runtime/kernels/capabilities.h). No torch
// here.
#pragma once
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

struct DeviceReport {
  /// {"name": "GAUDI3", "devices": 1, "lazy": false, "fp8": true, "fp16": true,
  ///  "dtypes": {"float16": {"GAUDI": [], "GAUDI2": ["tensors", "mm", "conv", "autocast"], ..., "emulation_only":
  ///  false}}}; name, devices, fp8 and fp16 are null where their variable can't be meant.
  io::Json json;
  std::string text;  ///< a row for each dtype, a column for each generation
};
DeviceReport device_report();

}  // namespace fp8::commands
