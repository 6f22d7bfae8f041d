// SPDX-License-Identifier: Apache-2.0
// What keys of a QUANT_CONFIG demand of each other, of the device and of the environment.
//
//   dynamic_quantization   mode QUANTIZE or LOAD; no HW_ALIGNED activation, no method of fixed values,
//                          no OPT activation; not with use_qdq, fake_quant, row_parallel_linear_allreduce_quantization
//   *_pcs_pow2 activations only with dynamic_quantization
//   device_for_scales      another device than the one in use: GAUDI2 on gaudi3, maxabs_hw only
//   RUNTIME_SCALE_PATCHING no PCS method (scales are single numbers there)
//   use_qdq, fake_quant    one of the two
#pragma once
#include <string>
#include <vector>

#include "fp8/configs/environment.h"
#include "fp8/configs/quant_config.h"

namespace fp8::configs {

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
