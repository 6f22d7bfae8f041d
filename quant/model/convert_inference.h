// SPDX-License-Identifier: Apache-2.0
// Measuring and quantizing a model in memory as a QUANT_CONFIG asks for, or without one.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

/// Where a conversion takes its QUANT_CONFIG from.
///   false / true        measure / quantize; the environment's QUANT_CONFIG applies, with its mode overruled
///   a path, or JSON     that file or object, mode included; wins over the environment, with a warning
/// JSON that is true, false or a string counts as that; convert_modules() refuses other values, null and an empty path.
class QuantSource {
 public:
  QuantSource(bool quantize) : value_(quantize) {}
  QuantSource(const char* path) : QuantSource(path == nullptr ? io::Json(nullptr) : io::Json(path)) {}
  QuantSource(const std::string& path) : value_(std::filesystem::path(path)) {}
  QuantSource(std::filesystem::path path) : value_(std::move(path)) {}
  QuantSource(io::Json config) {
    if (config.is_boolean()) {
      value_ = config.get<bool>();
    } else if (config.is_string()) {
      value_ = std::filesystem::path(config.get<std::string>());
    } else {
      value_ = std::move(config);
    }
  }
  const std::variant<bool, std::filesystem::path, io::Json>& value() const { return value_; }

 private:
  std::variant<bool, std::filesystem::path, io::Json> value_;
};

/// The fields of te::ConvertOptions that count for inference.
struct InferenceOptions {
  QuantSource quant = true;
  std::string fp8_data_path = {}, dump_stats_path = {};
  std::vector<std::string> allow = {}, block = {};
  bool plan_only = false;
};

/// Hangs watchers on a model, or reads measurements and converts it; te::HPUPrecisionPlugin::convert_modules() says
/// what is done and thrown.
ConversionReport convert_for_inference(const torch::nn::Module& model, const InferenceOptions& options);
ConversionReport convert_for_inference(const torch::jit::Module& model, const InferenceOptions& options);

/// Ends a calibration of the model and makes values of its codes, in the dtype that each weight had. Returns how many
/// weights and operator nodes were in fp8.
int restore_inference(const torch::nn::Module& model);

}  // namespace fp8::quant
