// SPDX-License-Identifier: Apache-2.0
// What `fp8 inspect` makes of a file: one JSON object and one table for people.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json.h"

namespace fp8::commands {

struct Inspection {
  io::Json json;     ///< has "kind": "checkpoint", "measurement", "scales" or "shapes"
  std::string text;  ///< table and totals, ends with a newline
};

/// A checkpoint folder or one .safetensors or torch.save file. fp8 weights are shown with the granularity and range of
/// their scales. as_json: json has "tensors" and text is empty, else the other way round (a million tensors need not be
/// held twice). Throws io::Error.
Inspection inspect_checkpoint(const std::filesystem::path& path, bool as_json);

/// A measurement or scale file, .json or .npz: per module the values of inputs, outputs and parameters. Throws io::Error.
Inspection inspect_measurement(const std::filesystem::path& path);

}  // namespace fp8::commands
