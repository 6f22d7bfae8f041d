// SPDX-License-Identifier: Apache-2.0
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
#pragma once
#include <map>
#include <string>
#include <vector>

#include "fp8/configs/configs.h"
#include "fp8/quant/model/convert.h"

namespace fp8::quant {

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

}  // namespace fp8::quant
