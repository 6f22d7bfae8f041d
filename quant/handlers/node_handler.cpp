// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/node_handler.h"

#include <stdexcept>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/handlers/kv_cache_handler.h"
#include "fp8/quant/handlers/matmul_handler.h"
#include "fp8/quant/handlers/moe_handler.h"
#include "fp8/quant/handlers/softmax_handler.h"

namespace fp8::quant {
namespace {

using configs::ModuleKind;

template <class Handler>
std::shared_ptr<NodeHandler> make_handler(const NodeScheme& scheme) {
  return std::make_shared<Handler>(scheme);
}

/// inputs, outputs: how many scales a kind needs at least.
struct NodeKind {
  ModuleKind kind;
  std::size_t inputs, outputs;
  std::shared_ptr<NodeHandler> (*make)(const NodeScheme& scheme);
};
constexpr NodeKind kNodeKinds[] = {
    {.kind = ModuleKind::matmul, .inputs = 2, .outputs = 0, .make = make_handler<Fp8MatmulHandler>},
    {.kind = ModuleKind::b2b_matmul, .inputs = 2, .outputs = 0, .make = make_handler<Fp8MatmulHandler>},
    {.kind = ModuleKind::softmax, .inputs = 0, .outputs = 1, .make = make_handler<Fp8SoftmaxHandler>},
    {.kind = ModuleKind::fused_sdpa, .inputs = 4, .outputs = 0, .make = make_handler<Fp8AttentionHandler>},
    {.kind = ModuleKind::kv_cache, .inputs = 1, .outputs = 0, .make = make_handler<Fp8KvCacheHandler>},
    {.kind = ModuleKind::dynamic_moe, .inputs = 2, .outputs = 0, .make = make_handler<Fp8MoeHandler>},
};

const NodeKind& node_kind(ModuleKind kind) {
  for (const NodeKind& row : kNodeKinds) {
    if (row.kind == kind) return row;
  }
  throw std::invalid_argument(std::string("no handler for modules of kind ") + configs::name_of(kind));
}

}  // namespace

NodeHandler::NodeHandler(NodeScheme scheme) : scheme_(std::move(scheme)) { make_quantizers(); }

void NodeHandler::make_quantizers() {
  using Over = Quantizer::Over;
  inputs_.clear();
  outputs_.clear();
  const NodeKind& needed = node_kind(scheme_.kind);
  if (scheme_.dynamic) {
    const bool product = configs::info_of(scheme_.kind).product;
    for (std::size_t i = 0; i < needed.inputs; ++i) {
      if (scheme_.kind == ModuleKind::fused_sdpa && i == 3) {  // P is at most 1
        inputs_.emplace_back(scheme_, 1.0f / scheme_.fp8_max());
        continue;
      }
      const Over over = !scheme_.per_token || scheme_.kind == ModuleKind::fused_sdpa ? Over::tensor
                        : product && i == 1                                          ? Over::column
                                                                                     : Over::row;
      inputs_.emplace_back(scheme_, over, scheme_.dynamic_method);
    }
    for (std::size_t i = 0; i < needed.outputs; ++i)
      outputs_.emplace_back(scheme_, 1.0f / scheme_.fp8_max());  // softmax's P
    return;
  }
  if (scheme_.input_scale_inv.size() < needed.inputs || scheme_.output_scale_inv.size() < needed.outputs) {
    throw std::invalid_argument(std::string(configs::name_of(scheme_.kind)) + ": expected " +
                                std::to_string(needed.inputs) + " input and " + std::to_string(needed.outputs) +
                                " output scales, found " + std::to_string(scheme_.input_scale_inv.size()) + " and " +
                                std::to_string(scheme_.output_scale_inv.size()));
  }
  for (float s : scheme_.input_scale_inv) inputs_.emplace_back(scheme_, s);
  for (float s : scheme_.output_scale_inv) outputs_.emplace_back(scheme_, s);
}

void NodeHandler::set_input_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= inputs_.size())
    throw std::invalid_argument("input " + std::to_string(index) + ": found no such static scale in " + describe());
  const Quantizer checked(scheme_, scale_inv);
  scheme_.input_scale_inv[index] = scale_inv;
  if (scheme_.kind == ModuleKind::kv_cache && index < scheme_.output_scale_inv.size())
    scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

void NodeHandler::set_output_scale_inv(std::size_t index, float scale_inv) {
  if (scheme_.dynamic || index >= outputs_.size())
    throw std::invalid_argument("output " + std::to_string(index) + ": found no such static scale in " + describe());
  if (scheme_.kind == ModuleKind::kv_cache) return set_input_scale_inv(index, scale_inv);
  const Quantizer checked(scheme_, scale_inv);
  scheme_.output_scale_inv[index] = scale_inv;
  make_quantizers();
}

std::shared_ptr<NodeHandler> make_node_handler(const NodeScheme& scheme) { return node_kind(scheme.kind).make(scheme); }

}  // namespace fp8::quant
