// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG: Intel Neural Compressor's (INC's) JSON that says what to measure or quantize, and how.
//
//   {"mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw",
//    "blocklist": {"names": ["lm_head"], "types": []}, "dump_stats_path": "./out/inc_output"}
//
// Keys are case-sensitive, enumerated values are not, defaults are INC's. Unlike INC, nothing is ignored in silence:
// an unknown key is an error that names the nearest one; a known key that is not built yet is an error unless it has
// its default; a key without effect here says so in describe().
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/module_filter.h"
#include "fp8/recipes/format.h"
#include "fp8/recipes/inc_scale.h"
#include "fp8/recipes/scale_method.h"
#include "fp8/runtime/io/json.h"

namespace fp8::configs {

/// NONE: leave the model alone. SHAPE and LOAD are known to INC, not built here.
enum class QuantMode : std::uint8_t { NONE, QUANTIZE, MEASURE };

/// What is left out of measurements. Only OUTPUT and ALL have an effect: no outputs, unless a module type always
/// needs them.
enum class MeasureExclude : std::uint8_t { NONE, INPUT, OUTPUT, PARAMS, ALL };

const char* name_of(QuantMode mode);
const char* name_of(MeasureExclude exclude);

struct QuantConfig {
  QuantMode mode = QuantMode::QUANTIZE;
  std::string observer = "maxabs";
  recipes::NamedScaleMethod scale_method = recipes::scale_method_from_name("MAXABS_HW");
  ModuleList allowlist, blocklist;
  /// Folder and beginning of the names of measurement files (stats_path.h); relative to the working directory.
  std::filesystem::path dump_stats_path = "stats";
  recipes::Format fp8_config = recipes::Format::E4M3;
  recipes::FloatType hp_dtype = recipes::FloatType::BF16;
  MeasureExclude measure_exclude = MeasureExclude::OUTPUT;
  std::optional<recipes::Dialect> device_for_scales;  ///< none: the device in use
  bool ignore_modules_wo_measures = false;            ///< false: a selected module without measurements is an error
  bool separate_measure_files = true;                 ///< one set of files per rank (JSON: "seperate_measure_files")

  std::string source = "built-in defaults";      ///< the file, for messages
  std::map<std::string, std::string> file_keys;  ///< keys in the file (aliases resolved) and their text, for describe()
};

/// Reads the parsed JSON; `name` (the file) stands in messages. Throws io::Error, in one line:
/// "FILE: key 'mode': found \"MEASUR\", allowed: NONE, QUANTIZE, MEASURE". A scale method that is not built yet is an
/// error in mode QUANTIZE only, where it would be used.
QuantConfig parse_quant_config(const io::Json& json, const std::string& name);

/// Reads a file. Throws io::Error.
QuantConfig read_quant_config(const std::filesystem::path& path);

/// What the environment variable QUANT_CONFIG names; none if it is unset or empty. The file is not looked at.
std::optional<std::filesystem::path> quant_config_from_environment();

/// The rule of allowlist and blocklist.
ModuleFilter module_filter(const QuantConfig& config);

/// What inc_scale_inv() needs. `device`: the dialect of the device in use, for a config without device_for_scales.
recipes::IncTarget inc_target(const QuantConfig& config, recipes::Dialect device);

/// ignored: accepted, without effect here. not_built_yet: accepted with its default value only.
enum class KeyStatus : std::uint8_t { built, ignored, not_built_yet };
const char* name_of(KeyStatus status);  ///< "built", "ignored", "not built yet"

/// One key as it is in force.
struct KeyReport {
  std::string key, value;
  std::string origin;  ///< "default", or the file
  KeyStatus status = KeyStatus::built;
  std::string note;    ///< why it is ignored; else empty
};

/// Every key INC knows, in the order of the table.
std::vector<KeyReport> describe(const QuantConfig& config);

}  // namespace fp8::configs
