// SPDX-License-Identifier: Apache-2.0
// The one call that serving and training code needs: pick a precision, convert the model. A thin front over measure and quant.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "fp8/quant/convert.h"
#include "fp8/runtime/io/json.h"

namespace fp8::te {

/// Where a conversion takes its QUANT_CONFIG from.
///   false / true        measure / quantize; the environment's QUANT_CONFIG applies, with its mode overruled
///   a path, or JSON     that file or object, mode included; wins over the environment, with a warning
class QuantSource {
 public:
  QuantSource(bool quantize) : value_(quantize) {}
  QuantSource(const char* path) : value_(std::filesystem::path(path)) {}
  QuantSource(const std::string& path) : value_(std::filesystem::path(path)) {}
  QuantSource(std::filesystem::path path) : value_(std::move(path)) {}
  QuantSource(io::Json config) : value_(std::move(config)) {}
  const std::variant<bool, std::filesystem::path, io::Json>& value() const { return value_; }

 private:
  std::variant<bool, std::filesystem::path, io::Json> value_;
};

struct ConvertOptions {
  bool inference = false;       ///< only inference is built so far
  QuantSource quant = true;
  /// Where measurements are written to and read from when no config says so.
  std::string dump_stats_path = "fp8_measure/inc_output";
};

/// "32-true" ("32"), "bf16-mixed" ("bf16"), "16-mixed", "fp8".
class HPUPrecisionPlugin {
 public:
  /// Throws c10::Error listing the allowed precisions for any other word.
  explicit HPUPrecisionPlugin(const std::string& precision);

  const std::string& precision() const { return precision_; }

  /// Measuring: hangs watchers on the selected weights; run data, then fp8::measure::finalize_calibration(model) (also on destruction)
  /// writes the files. Quantizing: ends a calibration of the model that is going on, reads the measurements (unless the scale method
  /// needs none) and converts. Parameters keep identity, device and requires_grad. Without a QUANT_CONFIG every Linear and Conv2d is
  /// measured, and static per-tensor scales of our own convention are used.
  /// Throws c10::Error or io::Error naming key or module; needs precision "fp8" and a model on hpu.
  quant::ConversionReport convert_modules(torch::nn::Module& model, const ConvertOptions& options) const;
  quant::ConversionReport convert_modules(torch::jit::Module& model, const ConvertOptions& options) const;

 private:
  std::string precision_;
};

}  // namespace fp8::te
