// SPDX-License-Identifier: Apache-2.0
// What `fp8 inspect` makes of a file: one JSON object and one table for people.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// From here on a scale or an amax is absurd: its square leaves f32.
inline constexpr double kAbsurd = 0x1p64;

struct Inspection {
  io::Json json;     ///< has "kind": "checkpoint", "measurement", "scales" or "shapes"
  std::string text;  ///< table and totals, ends with a newline
};

/// A checkpoint folder or one .safetensors or torch.save file. fp8 weights are shown with the granularity and range of
/// their scales. as_json: json has "tensors" and text is empty, else the other way round (a million tensors need not be
/// held twice). json["problems"]: tensors with NaN or Inf (values and codes; read_values: all are read for that),
/// scales that are 0, negative, not finite or absurd; json["warnings"]: what other readers would misread. Throws
/// io::Error.
Inspection inspect_checkpoint(const std::filesystem::path& path, bool as_json, bool read_values);

/// A measurement or scale file, .json or .npz: per module the values of inputs, outputs and parameters.
/// json["problems"]: amax values that are negative, not finite or absurd, scales that are 0 as well. Throws io::Error.
Inspection inspect_measurement(const std::filesystem::path& path);

}  // namespace fp8::commands
