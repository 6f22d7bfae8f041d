// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/node_handler.h"

#include <stdexcept>
#include <utility>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/io/base/fail.h"

namespace fp8::quant {

NodeHandler::NodeHandler(NodeScheme scheme) : scheme_(std::move(scheme)) { make_quantizers(); }

void NodeHandler::make_quantizers() {
  inputs_.clear();
  outputs_.clear();
  const NodeHandlerRow needed = node_handler_row(scheme_.kind);
  if (scheme_.dynamic) {
    const auto at_each_call = [this](DynamicScale shared) {
      using runtime::ScaleLayout;
      if (shared == DynamicScale::probability) return Quantizer(scheme_, 1.0f / scheme_.fp8_max());
      const bool one = !scheme_.per_token || shared == DynamicScale::tensor;
      const ScaleLayout each = shared == DynamicScale::column ? ScaleLayout::per_column() : ScaleLayout::per_row();
      return Quantizer(scheme_, one ? ScaleLayout::per_tensor() : each, scheme_.dynamic_method);
    };
    for (const DynamicScale shared : needed.inputs) inputs_.push_back(at_each_call(shared));
    for (const DynamicScale shared : needed.outputs) outputs_.push_back(at_each_call(shared));
    return;
  }
  if (scheme_.input_scale_inv.size() < needed.inputs.size() || scheme_.output_scale_inv.size() < needed.outputs.size())
    io::fail<std::invalid_argument>("{}: expected {} input and {} output scales, found {} and {}",
                                    configs::name_of(scheme_.kind), needed.inputs.size(), needed.outputs.size(),
                                    scheme_.input_scale_inv.size(), scheme_.output_scale_inv.size());
  for (float s : scheme_.input_scale_inv) inputs_.emplace_back(scheme_, s);
  for (float s : scheme_.output_scale_inv) outputs_.emplace_back(scheme_, s);
}

void NodeHandler::set_input_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= inputs_.size())
    io::fail<std::invalid_argument>("input {}: found no such static scale in {}", index, describe());
  const Quantizer checked(scheme_, scale_inv);
  scheme_.input_scale_inv[index] = scale_inv;
  if (configs::info_of(scheme_.kind).cache && index < scheme_.output_scale_inv.size())
    scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

void NodeHandler::set_output_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= outputs_.size())
    io::fail<std::invalid_argument>("output {}: found no such static scale in {}", index, describe());
  if (configs::info_of(scheme_.kind).cache) return set_input_scale_inv(index, scale_inv);
  const Quantizer checked(scheme_, scale_inv);
  scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

std::shared_ptr<NodeHandler> make_node_handler(const NodeScheme& scheme) {
  return node_handler_row(scheme.kind).make(scheme);
}

namespace {

using configs::ModuleKind;

configs::KindTable<NodeHandlerRow>& node_handlers() {
  using enum DynamicScale;
  static auto& table = *new configs::KindTable<NodeHandlerRow>({
      {ModuleKind::matmul, {.inputs = {row, column}, .make = make_handler<Fp8MatmulHandler>}},
      {ModuleKind::b2b_matmul, {.inputs = {row, column}, .make = make_handler<Fp8MatmulHandler>}},
      {ModuleKind::softmax, {.outputs = {probability}, .make = make_handler<Fp8SoftmaxHandler>}},
      {ModuleKind::fused_sdpa,
       {.inputs = {tensor, tensor, tensor, probability}, .make = make_handler<Fp8AttentionHandler>}},
      {ModuleKind::kv_cache, {.inputs = {row}, .make = make_handler<Fp8KvCacheHandler>}},
      {ModuleKind::dynamic_moe, {.inputs = {row, row}, .make = make_handler<Fp8MoeHandler>}},
  });
  return table;
}

/// A scale of each of the first tensors, as many as the handler has.
NodeScaleRule one_of_each(const NodeHandlerRow& handler) {
  return [inputs = handler.inputs.size(), outputs = handler.outputs.size()](NodeScheme& scheme,
                                                                            const NodeMeasurement& from) {
    for (std::size_t i = 0; i < inputs; ++i) scheme.input_scale_inv.push_back(from.input(i));
    for (std::size_t i = 0; i < outputs; ++i) scheme.output_scale_inv.push_back(from.output(i));
  };
}

const NodeKind& with_handler(const NodeKind& kind) {
  if (kind.handler.make) return kind;
  io::fail<std::invalid_argument>("module kind {}: handler.make is missing", io::in_quotes(kind.kind.name));
}

}  // namespace

NodeHandlerRow node_handler_row(ModuleKind kind) {
  if (const auto row = node_handlers().find(kind)) return *row;
  io::fail<std::invalid_argument>("no handler for modules of kind {}", configs::name_of(kind));
}

NodeKindRegistration::NodeKindRegistration(NodeKind row)
    : kind_(with_handler(row).kind),
      scales_(node_scale_rules(), kind(),
              std::make_shared<const NodeScaleRule>(row.scales ? std::move(row.scales) : one_of_each(row.handler))),
      handler_(node_handlers(), kind(), std::make_shared<const NodeHandlerRow>(std::move(row.handler))) {
  if (row.show)
    show_.emplace(measure::shown_calls(), kind(), std::make_shared<const measure::ShowCall>(std::move(row.show)));
}

}  // namespace fp8::quant
