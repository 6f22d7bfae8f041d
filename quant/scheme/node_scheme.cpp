// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scheme/node_scheme.h"

#include <algorithm>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {

using configs::ModuleKind;

std::string NodeScheme::describe() const {
  const bool heads = kind == ModuleKind::kv_cache && input_scale_inv.size() > 1;
  const char* scales = heads       ? "static head scales"
                       : !dynamic  ? "static scales"
                       : per_token ? "dynamic token scales"
                                   : "dynamic tensor scales";
  return std::string(kernels::name_of(format)) + " " + configs::name_of(kind) + ", " + scales + ", " +
         kernels::name_of(dialect) + (compute == Compute::fp8 ? "" : std::string(", ") + name_of(compute));
}

float one_amax(const measure::Measurement& measured, bool input, std::size_t index) {
  const std::string where =
      "measurements: " + measured.module + (input ? ".inputs[" : ".outputs[") + std::to_string(index) + "]";
  const auto& list = input ? measured.inputs : measured.outputs.value_or(std::vector<measure::Amax>{});
  if (index >= list.size()) throw io::Error(where + ": it was not measured");
  if (list[index].empty()) throw io::Error(where + ": expected an amax, found none");
  return *std::max_element(list[index].begin(), list[index].end());
}

std::vector<float> expert_amax(const measure::Measurement& measured, std::size_t experts,
                               std::vector<std::string>& warnings) {
  const std::size_t found = measured.outputs.has_value() ? measured.outputs->size() : 0;
  if (found != experts + 1) {
    throw io::Error("measurements: " + measured.module + ".outputs: expected 1 and " + std::to_string(experts) +
                    " (each expert), found " + std::to_string(found) + "; measured with other ranks?");
  }
  std::vector<float> amax;
  for (std::size_t e = 0; e < experts; ++e) amax.push_back(one_amax(measured, false, 1 + e));
  const float largest = amax.empty() ? 0.0f : *std::max_element(amax.begin(), amax.end());
  std::vector<std::size_t> idle;
  for (std::size_t e = 0; e < experts; ++e) {
    if (amax[e] != 0.0f) continue;
    idle.push_back(e);
    amax[e] = largest;
  }
  if (!idle.empty()) {
    warnings.push_back(measured.module + ": calibration gave no token to expert " + io::joined(idle) +
                       "; the largest intermediate scale of the others stands in (more samples help)");
  }
  return amax;
}

void set_node_scales(NodeScheme& scheme, const measure::Measurement* measured, const recipes::ScaleMethod& method,
                     const std::string& module, std::size_t experts, std::vector<std::string>& warnings) {
  const auto scale = [&](float amax, const char* tensor) {
    return activation_scale_inv(amax, scheme, method, module + "." + tensor);
  };
  const auto input = [&](std::size_t i) {
    return scale(measured != nullptr ? one_amax(*measured, true, i) : 0.0f, "inputs");
  };
  const auto output = [&](std::size_t i) {
    return scale(measured != nullptr ? one_amax(*measured, false, i) : 0.0f, "outputs");
  };
  auto& in = scheme.input_scale_inv;
  auto& out = scheme.output_scale_inv;
  in.clear();
  out.clear();
  switch (scheme.kind) {
    case ModuleKind::matmul:
    case ModuleKind::b2b_matmul:
      in = {input(0), scheme.kind == ModuleKind::matmul ? input(1) : output(0)};
      out = {in[0] * in[1]};
      if (scheme.convention == Convention::inc) out[0] = recipes::round_to(out[0], scheme.hp);
      break;
    case ModuleKind::softmax:
      out = {output(0)};
      break;
    case ModuleKind::fused_sdpa:
      in = {input(0), input(1), input(2), output(1)};
      if (scheme.convention == Convention::inc) out = {output(0)};
      break;
    case ModuleKind::kv_cache:
      in = out = {input(0)};
      break;
    case ModuleKind::dynamic_moe: {
      in = {input(0)};
      const std::vector<float> amax =
          measured != nullptr ? expert_amax(*measured, experts, warnings) : std::vector<float>(experts, 0.0f);
      for (float a : amax) in.push_back(scale(a, "experts"));
      out = {output(0)};
      break;
    }
    default:
      throw io::Error(module + ": modules of kind " + configs::name_of(scheme.kind) + " have no scales of their own");
  }
}

}  // namespace fp8::quant
