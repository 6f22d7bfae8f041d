// SPDX-License-Identifier: Apache-2.0
// What `fp8 inspect` makes of a file: one JSON object, and for people a summary and tables.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::commands {

/// From here on a scale or an amax is absurd: its square leaves f32.
inline constexpr double kAbsurd = 0x1p64;

struct Inspection {
  io::Json json;     ///< has "kind": "checkpoint", "measurement", "scales" or "shapes"
  std::string text;  ///< summary and problems, ends with a newline
  std::string all;   ///< every tensor or module, where that was asked for
  /// What stays in high precision in a checkpoint that is in fp8, and why.
  std::vector<quant::SkippedModule> kept = {};
  std::shared_ptr<const io::Checkpoint> checkpoint = nullptr;  ///< what was opened: a header of megabytes is read once
};

struct InspectDetail {
  bool as_json = false;  ///< json has "tensors" and the texts are empty: a million tensors need not be held twice
  bool values = true;    ///< all values are read, in search of NaN and Inf
  bool all = false;      ///< Inspection::all is made
};

/// A checkpoint folder or one .safetensors or torch.save file. fp8 weights are shown with the granularity and range of
/// their scales. json["problems"]: tensors with NaN or Inf (values and codes), scales that are 0, negative, not finite
/// or absurd; json["warnings"]: what other readers would misread. Throws io::Error.
Inspection inspect_checkpoint(const std::filesystem::path& path, const InspectDetail& detail);

/// A measurement or scale file, .json or .npz (NaN, Infinity and -Infinity in a .json as Python writes them): per
/// module the values of inputs, outputs and parameters; in the text modules that differ in their numbers alone are one
/// line. json["problems"]: amax values or scales that are 0, negative, not finite or absurd. Throws io::Error.
Inspection inspect_measurement(const std::filesystem::path& path, bool all);

}  // namespace fp8::commands
