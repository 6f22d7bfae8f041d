// SPDX-License-Identifier: Apache-2.0
// Measuring and quantizing a model in memory as a QUANT_CONFIG asks for, or without one.
#pragma once
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "fp8/quant/model/convert.h"

namespace fp8::quant {

/// The source of a conversion's QUANT_CONFIG.
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

// A model in memory, quantized as a QUANT_CONFIG says, files included: measurements are read, scales are read where a
// fresh file of them is there and written where it is not.
//
//   mode       measurements            scale file P_hooks_{observer}_{METHOD}.json, .npz
//   QUANTIZE   read when needed        fresh: used. stale: made again, with a warning.
//                                      another tool's: used, with a warning.
//                                      recalc_scales: never read. Written after scales were made.
//   LOAD       -                       has to be there, and is used
//
// Methods of fixed values and dynamic scales have nothing to store: no file is looked at.
// SCALE_METHOD_CONFIG_DUMP_PATH gets the method of every module, as JSON.

/// device: the dialect of the device in use. keep: PlanOptions::keep. Throws io::Error or c10::Error naming key, file
/// or module; then nothing is converted.
ConversionReport convert_with_config(const torch::nn::Module& model, const configs::QuantConfig& config,
                                     recipes::Dialect device, const std::map<std::string, std::string>& keep = {});
ConversionReport convert_with_config(const torch::jit::Module& model, const configs::QuantConfig& config,
                                     recipes::Dialect device, const std::map<std::string, std::string>& keep = {});
ConversionReport convert_with_config(const std::vector<measure::WeightModule>& modules,
                                     const std::vector<measure::OpNode>& nodes, const configs::QuantConfig& config,
                                     recipes::Dialect device, const std::map<std::string, std::string>& keep = {});

/// The plan alone: files are read, nothing is written or converted.
Plan plan_with_config(const torch::nn::Module& model, const configs::QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep = {});
Plan plan_with_config(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
                      const configs::QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep = {});
Plan plan_with_config(const torch::jit::Module& model, const configs::QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep = {});

// For programs that do nothing but run a model.

/// Lets the weights of converted layers lie packed in their memory as long as products read them
/// (runtime/device/block.h): the same bits, and products of one token are 1.6 times as fast (AVX2). Other operations
/// that read or write them find rows; asking for their address throws while they are packed (Tensor::data_ptr(), which
/// Python's torch.save calls). Returns the number of these weights.
std::size_t serve(const torch::nn::Module& model);
std::size_t serve(const torch::jit::Module& model);
std::size_t serve(const std::vector<at::Tensor>& weights);

}  // namespace fp8::quant
