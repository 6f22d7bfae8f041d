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

// `fp8 inspect` of what `fp8 train` left: the course of one run, and several runs in one picture.

/// True for a folder that holds log.jsonl, and for a .jsonl file.
bool is_training(const std::filesystem::path& path);

/// "kind": "training", "runs": one entry per path with its losses and speed. Each path is a folder of `fp8 train` or
/// its log. Throws io::Error.
Inspection inspect_training(const std::vector<std::filesystem::path>& paths);

/// The curves as one file: an SVG if its name ends in .svg, else a page with the SVG and the table. Written atomically.
void write_training_page(const std::filesystem::path& file, const std::vector<std::filesystem::path>& paths,
                         const Inspection& inspection);

// `fp8 inspect --html`: one self-contained page (no network, no other files) with a heat map layer x module, histograms
// and a table with search. The page is report_page.html; this fills its data in.

/// report: {"kind", "title", "summary", "about"?, "modules": [..], "skipped"?: [{"name", "reason"}],
/// "skipped_title"?}; what a module has hangs on the kind, each key but its name optional:
///
///   damage       {"name", "type", "scheme", "sqnr_db", "weight": PART, "input": PART}, PART: {"amax", "scale_inv",
///                "sqnr_db", "saturation", "underflow", "largest", "smallest", "octaves": {"first_exponent", "counts"}}
///   measurement  {"name", "input", "output", "weight", "bad"}: amaxes, and what is wrong with them
///   diff         {"name", "type", "before", "after", "ratio", "change"}: a tensor's; change: max(ratio, 1 / ratio)
///   training     {"name", "type", "saturation", "underflow", "amax"}: type: the run
///
/// figures: HTML that stands above all of it. Any text in the report is shown as text.
std::string report_page(const io::Json& report, const std::string& figures = "");

/// Writes the page, atomically. Throws io::Error.
void write_report_page(const std::filesystem::path& path, const io::Json& report, const std::string& figures = "");

/// What the page shows of inspect's result for a checkpoint (with "modules") or a measurement. Throws io::Error for a
/// checkpoint without them.
io::Json report_of(const std::string& title, const io::Json& inspected);

}  // namespace fp8::commands
