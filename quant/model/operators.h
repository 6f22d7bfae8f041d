// SPDX-License-Identifier: Apache-2.0
// Quantization as operators (the list of all: runtime/intercept/tag_operators.h). JSON arguments may lack any key, and
// have no others.
//
//   options of convert()   "measurements": DIR, PREFIX or file
//                          "activations": "none" | "static_tensor" | "dynamic_token" | "dynamic_tensor" |
//                                         "dynamic_group"
//                          "weights": "tensor" | "channel" | "block" | "mx"          "block": [rows, cols]
//                          "power_of_two": bool                                      "fuse_scales": bool
//                          "dialect": "gaudi2" | "gaudi3" | "ocp" (default: the device's)
//                          "weight_scales": "amax" | "mse", least squared error
//                          "include", "exclude": [patterns]
//     or, alone:           "quant_config": a QUANT_CONFIG, as an object or a file's path: INC's rules
//     with either:         "recurrent": true (LSTM, GRU and RNN too: Python's compare dtypes unless they are scripted
//                          or inside torch.autocast)
//   scheme of tag()        "weights" (default: what scale_inv's sizes say)           "activations" (default "none")
//                          "block", "power_of_two", "dialect"                        "convention": "own" | "inc"
//                          "input_scale_inv": number (static_tensor)                 "hp_dtype": as dtype (inc)
//                          "activation_method": {"granularity", "scale_value_type", "rounding_method", "backoff"}
//                                         (inc, dynamic activations: as in a QUANT_CONFIG's scale_method)
//                          "dtype": "f32" | "bf16" | "f16", what values are given back in (default bf16)
#pragma once

#include <tuple>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/model/convert.h"

namespace fp8::quant {

/// {"converted": [{"name", "type", "scheme", "bytes_before", "bytes_after"}], "skipped": [{"name", "reason"}],
/// "warnings": [...]}.
io::Json to_json(const ConversionReport& report);

/// The selected weights become fp8, in place: each stays the tensor that it is, with another dtype and memory. The
/// report as JSON. Throws as convert() and convert_with_config() do, and then nothing is converted; io::Error naming
/// the key for options.
std::string convert_tensors(at::TensorList weights, const std::vector<std::string>& modules,
                            const std::vector<std::string>& types, const std::string& options,
                            const measure::Nodes& nodes = std::nullopt,
                            const std::optional<std::vector<std::string>>& node_names = std::nullopt);

/// Marks codes (fp8 on hpu, contiguous): they stand for codes * scale_inv from now on. scale_inv: f32, positive and
/// finite; one value, one per row (per output channel), or the grid of blocks of a matrix. Throws c10::Error or
/// io::Error naming argument or key.
void tag_codes(const at::Tensor& codes, const std::string& module, const at::Tensor& scale_inv,
               const std::string& scheme);

/// A copy of the scales of a converted weight, on its device. Throws c10::Error for any other tensor.
at::Tensor scale_inv_of(const at::Tensor& weight);

/// The scheme of a converted weight such that tag(codes, name, scale_inv_of(weight), scheme_of(weight)) makes its like.
/// Throws c10::Error for any other tensor, and for scales of a method of one's own.
std::string scheme_of(const at::Tensor& weight);

/// load_fp8() of a checkpoint folder. compute: default the first weight's dtype. dialect: as LoadFp8Options says.
/// Returns the tensors that need not be loaded any more.
std::vector<std::string> load_tensors(at::TensorList weights, const std::vector<std::string>& modules,
                                      const std::vector<std::string>& types, const std::string& folder,
                                      std::optional<at::ScalarType> compute, const std::optional<std::string>& dialect);

/// save() of tensors by name; types: the class of the module that each belongs to ("" where it does not matter). A
/// tensor that stands there twice (tied) is stored under its first name. format: one of form_names() that needs no
/// MXFP4; source: the high precision checkpoint that config.json and tokenizer are taken from.
void save_tensors(at::TensorList tensors, const std::vector<std::string>& names, const std::vector<std::string>& types,
                  const std::string& folder, const std::string& format, const std::string& source, bool overwrite,
                  const measure::Nodes& nodes = std::nullopt,
                  const std::optional<std::vector<std::string>>& node_names = std::nullopt);

/// The quantization_config that save_tensors() writes, and its fp8.json.
std::tuple<std::string, std::string> config_of_tensors(
    at::TensorList tensors, const std::vector<std::string>& names, const std::vector<std::string>& types,
    const std::string& format, const std::string& source, const measure::Nodes& nodes = std::nullopt,
    const std::optional<std::vector<std::string>>& node_names = std::nullopt);

}  // namespace fp8::quant
