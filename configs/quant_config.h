// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG: Intel Neural Compressor's (INC's) JSON that says what to measure or quantize, and how.
//
//   {"mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw",
//    "blocklist": {"names": ["lm_head"], "types": []}, "dump_stats_path": "./out/inc_output"}
//
// Keys are case-sensitive, enumerated values are not, defaults are INC's. Unlike INC, nothing is ignored in silence: an
// unknown key is an error that names the nearest one, and a key without effect here says so in describe().
#pragma once

#include "fp8/configs/environment.h"
#include "fp8/configs/name_patterns.h"
#include "fp8/configs/scale_methods.h"
#include "fp8/recipes/inc_scale.h"

// The observers that a QUANT_CONFIG may name, and their parameters in scale_params. Configs knows no observer itself:
// the caller passes them (ParseOptions).

namespace fp8::configs {

/// A number that an observer reads.
struct ObserverParameter {
  std::string_view name;  ///< a literal: "bins"
  double otherwise;       ///< its value where scale_params has none
  double low, high;       ///< above low, up to high; of an integer low itself too
  bool integer = false;

  bool takes(double value) const;
  /// "an integer from 16 to 65536", "a number above 0, up to 100".
  std::string allowed() const;
};

struct ObserverKeys {
  std::string name;
  std::optional<std::vector<ObserverParameter>> parameters = {};  ///< none: any number by any name
};

/// Lower case letters, digits and _: names of observers stand in names of files.
bool is_observer_name(std::string_view name);
inline constexpr const char* kObserverNames = "lower case letters, digits and _";

using fp8::name_of;

/// NONE: leave the model alone. SHAPE: measure shapes. LOAD: the model is an fp8 checkpoint. AUTO (INC's FP8Config
/// writes it): the user of the config decides; prepare measures, convert quantizes.
enum class QuantMode : std::uint8_t { NONE, QUANTIZE, MEASURE, SHAPE, LOAD, AUTO };
FP8_ENUM_NAMES(QuantMode, {NONE, "NONE"}, {QUANTIZE, "QUANTIZE"}, {MEASURE, "MEASURE"}, {SHAPE, "SHAPE"},
               {LOAD, "LOAD"}, {AUTO, "AUTO"});

/// The tensors left out of measurements. Only OUTPUT and ALL have an effect: no outputs, unless a module type always
/// needs them.
enum class MeasureExclude : std::uint8_t { NONE, INPUT, OUTPUT, PARAMS, ALL };
FP8_ENUM_NAMES(MeasureExclude, {NONE, "NONE"}, {INPUT, "INPUT"}, {OUTPUT, "OUTPUT"}, {PARAMS, "PARAMS"}, {ALL, "ALL"});

/// How a module holds its scales. SCALAR: as plain numbers. CONST: as tensors of its own.
enum class ScaleStorage : std::uint8_t { SCALAR, CONST };
FP8_ENUM_NAMES(ScaleStorage, {SCALAR, "SCALAR"}, {CONST, "CONST"});

/// The scale of a weight: its amax's, or the candidate of the least squared error around that
/// (kernels/scale_search.h), which needs the values and no data.
enum class WeightScaleSearch : std::uint8_t { amax, mse };
FP8_ENUM_NAMES(WeightScaleSearch, {amax, "amax"}, {mse, "mse"});

/// "scale_params": backoffs (they may stand at the top level too), and parameters of the observer.
struct ScaleParams {
  /// Backoff of every activation (weight) whose scale comes from amax or a search, unless a scale_method object says
  /// one.
  std::optional<float> input_backoff, weight_backoff;
  /// Of the observer, within its limits (ObserverParameter).
  std::vector<std::pair<std::string, double>> observer;
};

/// "rounding", in llm-compressor's words: how weights get their codes, where a command has data for it. Not INC's.
struct RoundingKeys {
  std::string method = recipes::kNearest;  ///< of recipes::rounding_method_names()
  double dampening_frac = 0.01;            ///< of the mean diagonal of the inputs' matrix; above 0, up to 1
  bool by_diagonal = true;                 ///< "actorder": "static", columns by falling diagonal; null: as they stand

  bool nearest() const { return method == recipes::kNearest; }
};

struct QuantConfig {
  QuantMode mode = QuantMode::QUANTIZE;
  std::string observer = "maxabs";  ///< one of ParseOptions::observers
  /// The method of each module, backoffs of scale_params included. scale_method is its default_method.
  ScaleMethods scale_methods;
  recipes::NamedScaleMethod scale_method = recipes::scale_method_from_name("MAXABS_HW");
  ScaleParams scale_params;
  /// CONST where INC makes it so: a PCS method, fake_quant, dynamic_quantization.
  ScaleStorage scale_format = ScaleStorage::SCALAR;
  ModuleList allowlist, blocklist;
  /// Folder and beginning of the names of measurement files (measure/files/stats_files.h); relative to the working
  /// directory. Empty: none given, see require_stats_path().
  std::filesystem::path dump_stats_path = "stats";
  recipes::Format fp8_config = recipes::Format::E4M3;
  recipes::FloatType hp_dtype = recipes::FloatType::BF16;
  MeasureExclude measure_exclude = MeasureExclude::OUTPUT;
  std::optional<recipes::Dialect> device_for_scales;  ///< none: the device in use
  bool ignore_modules_wo_measures = false;            ///< false: a selected module without measurements is an error
  bool separate_measure_files = true;                 ///< one set of files per rank (JSON: "seperate_measure_files")
  /// True: a file of scales is not read. Default true with a scale_method object, as in INC.
  bool recalc_scales = false;
  bool fake_quant = false;              ///< quantize and dequantize at once, weights stay in high precision (training)
  bool use_qdq = false;                 ///< weights in fp8, arithmetic in high precision
  bool measure_on_hpu = true;           ///< false: the model stays on the host while it is prepared
  bool dynamic_quantization = false;    ///< scales of activations made at each call; nothing is measured
  bool row_parallel_allreduce = false;  ///< JSON: "row_parallel_linear_allreduce_quantization"
  RoundingKeys rounding;
  WeightScaleSearch weight_scale_search = WeightScaleSearch::amax;
  std::int64_t calibration_sample_interval = 0;  ///< measurements are written every so many samples too; 0: at the end

  std::string source = "built-in defaults";      ///< the file, for messages
  std::map<std::string, std::string> file_keys;  ///< keys in the file (aliases resolved) and their text, for describe()

  /// True if this config reads measurements: it quantizes, not dynamically, with a method that needs them.
  bool needs_measurements() const;
};

/// Throws io::Error that names the key if dump_stats_path is empty; `why` says what needs the file: "mode MEASURE
/// writes its files there".
void require_stats_path(const QuantConfig& config, const std::string& why);

struct ParseOptions {
  /// Those that there are (measure::parse_options()), in the order of messages. Empty: none is known, and any name and
  /// parameter is taken.
  std::vector<ObserverKeys> observers = {};
};

/// Reads the parsed JSON; `name` (the file) stands in messages. Throws io::Error, in one line:
/// "FILE: key 'mode': found \"MEASUR\", allowed: NONE, QUANTIZE, MEASURE, SHAPE, LOAD, AUTO". Rules between keys that
/// do not depend on the machine are checked too (quant_config.h has all).
QuantConfig parse_quant_config(const io::Json& json, const std::string& name, const ParseOptions& options = {});

/// Every problem of the JSON, one line each, in the order of the file; empty if parse_quant_config() would not throw.
std::vector<std::string> quant_config_problems(const io::Json& json, const std::string& name,
                                               const ParseOptions& options = {});

/// Reads a file. Throws io::Error.
QuantConfig read_quant_config(const std::filesystem::path& path, const ParseOptions& options = {});

/// Returns the path in the environment variable QUANT_CONFIG; none if it is unset or empty. The file is not looked at.
std::optional<std::filesystem::path> quant_config_from_environment();

/// The rule of allowlist and blocklist.
ModuleFilter module_filter(const QuantConfig& config);

/// Returns the input of inc_scale_inv(). `device`: the dialect of the device in use, for a config without
/// device_for_scales.
recipes::IncTarget inc_target(const QuantConfig& config, recipes::Dialect device);

/// built: in effect. ignored: accepted, without effect here. not_built_yet: accepted with its default value only.
enum class KeyStatus : std::uint8_t { built, ignored, not_built_yet };
FP8_ENUM_NAMES(KeyStatus, {built, "built"}, {ignored, "ignored"}, {not_built_yet, "not built yet"});

/// One key as it is in force.
struct KeyReport {
  std::string key, value;
  std::string origin;  ///< "default", or the file
  KeyStatus status = KeyStatus::built;
  std::string note;  ///< its effect, or why it is ignored
};

/// Every key INC knows, in the order of the table.
std::vector<KeyReport> describe(const QuantConfig& config);

// Requirements of a QUANT_CONFIG's keys on each other, the device and the environment.
//
//   dynamic_quantization   mode QUANTIZE or LOAD; no HW_ALIGNED activation, no method of fixed values,
//                          no OPT activation; not with use_qdq, fake_quant, row_parallel_linear_allreduce_quantization
//   *_pcs_pow2 activations only with dynamic_quantization
//   device_for_scales      another device than the one in use: GAUDI2 on gaudi3, maxabs_hw only
//   RUNTIME_SCALE_PATCHING no PCS method (scales are single numbers there)
//   use_qdq, fake_quant    one of the two

/// Every violated rule that concerns the keys alone, one line each: parse_quant_config() throws the first.
std::vector<std::string> key_rule_problems(const QuantConfig& config);

/// All violated rules. device: that of the device in use (ocp counts as gaudi3).
std::vector<std::string> rule_problems(const QuantConfig& config, recipes::Dialect device,
                                       const Environment& environment);

/// Throws io::Error with the first of them, or for a class name with a module path ("torch.nn.Linear"): no class has
/// such a name, so the list would say nothing.
void check_rules(const QuantConfig& config, recipes::Dialect device, const Environment& environment);

/// One line for each class name of allowlist, blocklist and scale_method.layer_types that no module can have, because
/// the class is not one that can be quantized ("torch.nn.Linear"), with the nearest that is. Not a violation: INC takes
/// it and selects nothing; but see refuse_type_paths().
std::vector<std::string> unknown_type_problems(const QuantConfig& config);

/// Throws io::Error with the first of those that have a module path: asked by those who measure or quantize.
void refuse_type_paths(const QuantConfig& config);

/// Throws io::Error for mode LOAD: asked by those who measure.
void refuse_load(const QuantConfig& config);

}  // namespace fp8::configs
