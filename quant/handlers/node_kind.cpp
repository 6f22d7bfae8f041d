// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/node_kind.h"

#include <stdexcept>
#include <utility>

#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/handlers/kv_cache_handler.h"
#include "fp8/quant/handlers/matmul_handler.h"
#include "fp8/quant/handlers/moe_handler.h"
#include "fp8/quant/handlers/softmax_handler.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::quant {
namespace {

using configs::ModuleKind;

configs::KindTable<NodeHandlerRow>& node_handlers() {
  using enum DynamicScale;
  static configs::KindTable<NodeHandlerRow> table({
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
  throw std::invalid_argument("module kind " + io::in_quotes(kind.kind.name) + ": handler.make is missing");
}

}  // namespace

NodeHandlerRow node_handler_row(ModuleKind kind) {
  if (auto row = node_handlers().find(kind)) return *std::move(row);
  throw std::invalid_argument(std::string("no handler for modules of kind ") + configs::name_of(kind));
}

NodeKindRegistration::NodeKindRegistration(NodeKind row)
    : kind_(with_handler(row).kind),
      scales_(node_scale_rules(), kind(), row.scales ? std::move(row.scales) : one_of_each(row.handler)),
      handler_(node_handlers(), kind(), std::move(row.handler)) {
  if (row.show) show_.emplace(measure::shown_calls(), kind(), std::move(row.show));
}

}  // namespace fp8::quant
