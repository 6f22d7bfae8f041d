// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scheme/node_scheme.h"

#include <algorithm>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {

using configs::ModuleKind;

std::string NodeScheme::describe() const {
  const configs::KindInfo* info = configs::find_kind(kind);
  const bool heads = info != nullptr && info->cache && input_scale_inv.size() > 1;
  const char* scales = heads       ? "static head scales"
                       : !dynamic  ? "static scales"
                       : per_token ? "dynamic token scales"
                                   : "dynamic tensor scales";
  return std::string(kernels::name_of(format)) + " " + configs::name_of(kind) + ", " + scales + ", " +
         kernels::name_of(dialect) + (compute == Compute::fp8 ? "" : std::string(", ") + name_of(compute));
}

float one_amax(const measure::Measurement& measured, bool input, std::size_t index) {
  const std::string where =
      io::message("measurements: {}{}{}]", measured.module, input ? ".inputs[" : ".outputs[", index);
  const auto& list = input ? measured.inputs : measured.outputs.value_or(std::vector<measure::Amax>{});
  if (index >= list.size()) io::fail<io::Error>("{}: it was not measured", where);
  if (list[index].empty()) io::fail<io::Error>("{}: expected an amax, found none", where);
  return *std::max_element(list[index].begin(), list[index].end());
}

std::vector<float> expert_amax(const measure::Measurement& measured, std::size_t experts,
                               std::vector<std::string>& warnings) {
  const std::size_t found = measured.outputs.has_value() ? measured.outputs->size() : 0;
  if (found != experts + 1)
    io::fail<io::Error>(
        "measurements: {}.outputs: expected 1 and {} (each expert), found {}; measured with other ranks?",
        measured.module, experts, found);
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

float NodeMeasurement::scale(float amax, const char* tensor) const {
  return activation_scale_inv(amax, numbers, method, module + "." + tensor);
}

float NodeMeasurement::input(std::size_t i) const {
  return scale(measured != nullptr ? one_amax(*measured, true, i) : 0.0f, "inputs");
}

float NodeMeasurement::output(std::size_t i) const {
  return scale(measured != nullptr ? one_amax(*measured, false, i) : 0.0f, "outputs");
}

namespace {

void set_product(NodeScheme& scheme, float a, float b) {
  scheme.input_scale_inv = {a, b};
  scheme.output_scale_inv = {a * b};
  if (scheme.convention == Convention::inc) scheme.output_scale_inv[0] = recipes::round_to(a * b, scheme.hp);
}

void set_matmul(NodeScheme& scheme, const NodeMeasurement& from) {
  const float a = from.input(0);
  set_product(scheme, a, from.input(1));
}

void set_b2b_matmul(NodeScheme& scheme, const NodeMeasurement& from) {
  const float a = from.input(0);
  set_product(scheme, a, from.output(0));
}

void set_softmax(NodeScheme& scheme, const NodeMeasurement& from) { scheme.output_scale_inv = {from.output(0)}; }

void set_attention(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = {from.input(0), from.input(1), from.input(2), from.output(1)};
  if (scheme.convention == Convention::inc) scheme.output_scale_inv = {from.output(0)};
}

void set_kv_cache(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = scheme.output_scale_inv = {from.input(0)};
}

void set_experts(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = {from.input(0)};
  const std::vector<float> amax = from.measured != nullptr ? expert_amax(*from.measured, from.experts, from.warnings)
                                                           : std::vector<float>(from.experts, 0.0f);
  for (float a : amax) scheme.input_scale_inv.push_back(from.scale(a, "experts"));
  scheme.output_scale_inv = {from.output(0)};
}

}  // namespace

configs::KindTable<NodeScaleRule>& node_scale_rules() {
  static auto& table = *new configs::KindTable<NodeScaleRule>({{ModuleKind::matmul, set_matmul},
                                                               {ModuleKind::b2b_matmul, set_b2b_matmul},
                                                               {ModuleKind::softmax, set_softmax},
                                                               {ModuleKind::fused_sdpa, set_attention},
                                                               {ModuleKind::kv_cache, set_kv_cache},
                                                               {ModuleKind::dynamic_moe, set_experts}});
  return table;
}

void set_node_scales(NodeScheme& scheme, const measure::Measurement* measured, const recipes::ScaleMethod& method,
                     const std::string& module, std::size_t experts, std::vector<std::string>& warnings) {
  const auto rule = node_scale_rules().find(scheme.kind);
  if (rule == nullptr)
    io::fail<io::Error>("{}: modules of kind {} have no scales of their own", module, configs::name_of(scheme.kind));
  scheme.input_scale_inv.clear();
  scheme.output_scale_inv.clear();
  (*rule)(scheme, {scheme, measured, method, module, experts, warnings});
}

}  // namespace fp8::quant
