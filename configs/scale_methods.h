// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG's scale_method: one spelling for the whole model, or a default with exceptions.
//
//   "scale_method": "maxabs_hw"
//   "scale_method": {"default":     {"weight": {"rounding_method": "POW2", "backoff": 0.5}, "activation": {...}},
//                    "layer_types": {"Linear": {"weight": {...}, "activation": {...}}},
//                    "layers":      {"0": {...}},
//                    "nodes":       {"model.layers.0.mlp.down_proj": {...}}}
//
// A module's method is that of its node (full name), else of its layer (the number behind "layers." or "layers/"), else
// of its type (class name), else the default. Each tensor has granularity, scale_value_type, rounding_method, backoff,
// params; what an exception leaves out is the default's, what the default leaves out is PTS, MAXABS, IDENTITY, 1.0. The
// first three of weight and activation together must be one of the 13 methods (recipes/scale_method.h).
#pragma once

#include "fp8/recipes/scale_method.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::configs {

struct ScaleMethods {
  using Table = std::map<std::string, recipes::NamedScaleMethod, std::less<>>;

  recipes::NamedScaleMethod default_method = recipes::scale_method_from_name("MAXABS_HW");
  Table nodes, layers, layer_types;

  /// The module's method by the order above. name: full, dotted; type: class name. The reference is good as long as
  /// this object is unchanged.
  const recipes::NamedScaleMethod& for_module(std::string_view name, std::string_view type) const;

  /// Which entry for_module() takes: "default", "layer_types.Linear", "layers.3", "nodes.lm_head".
  std::string source_of(std::string_view name, std::string_view type) const;

  /// No exceptions: every module has default_method.
  bool uniform() const { return nodes.empty() && layers.empty() && layer_types.empty(); }

  /// For file names: the default's name in upper case, also with exceptions, as Intel Neural Compressor does it.
  const std::string& name() const { return default_method.name; }

  /// True if some module's static scale may depend on measured activations.
  bool needs_measurements() const;

  /// Every method with the key path of its entry: ("default", m), ("nodes.lm_head", m), ...
  std::vector<std::pair<std::string, const recipes::NamedScaleMethod*>> all() const;
};

/// A tensor's method as an object of scale_method has it: granularity, scale_value_type, rounding_method, backoff,
/// params.
io::Json to_json(const recipes::ScaleMethod& method);

/// Reads one; what it leaves out is PTS, MAXABS, IDENTITY, 1.0. Throws io::Error "WHERE: key 'KEY.backoff': found ...".
recipes::ScaleMethod scale_method_from_json(const io::Json& json, const std::string& where, const std::string& key);

/// Returns the report for SCALE_METHOD_CONFIG_DUMP_PATH: per module ("name", "type") the method of its weight and
/// activation, in the form that Intel Neural Compressor writes and reads.
io::Json method_report(const ScaleMethods& methods, const std::vector<std::pair<std::string, std::string>>& modules);

}  // namespace fp8::configs

// Reading scale_method together with the backoffs of scale_params. Inside of configs only.

namespace fp8::configs::detail {

struct Backoffs {
  std::optional<float> weight, activation;
};

/// A string or the object of scale_methods.h; a backoff is taken where the JSON has none of its own. Throws io::Error
/// naming file and path of keys: "FILE: key 'scale_method.layers.3.weight.rounding_method': found "POW", allowed:
/// IDENTITY, POW2, ...". `key`: "scale_method".
ScaleMethods read_scale_methods(const io::Json& json, const std::string& file, const std::string& key,
                                const Backoffs& backoffs);

}  // namespace fp8::configs::detail
