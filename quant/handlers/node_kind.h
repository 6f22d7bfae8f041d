// SPDX-License-Identifier: Apache-2.0
// The kinds of modules without a weight that have a handler: those built in, and one's own.
//
//   struct ScaledAddHandler final : quant::NodeHandler {
//     using NodeHandler::NodeHandler;
//     std::vector<at::Tensor> tensors(const runtime::TensorsCall& call) override {
//       return {input(0).through_fp8(call.inputs[0]) + 2 * input(1).through_fp8(call.inputs[1])};
//     }
//   };
//   const quant::NodeKindRegistration mine(
//       {.kind = {.name = "scaled_add", .classes = {"ScaledAdd"}, .info = {.inputs = 2, .outputs = 1}},
//        .handler = {.inputs = {DynamicScale::row, DynamicScale::row}, .make = make_handler<ScaledAddHandler>}});
//
// From then on modules of that class (runtime::OpModule) are measured and quantized where a QUANT_CONFIG selects them.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fp8/measure/calibration/watchers.h"
#include "fp8/quant/handlers/node_handler.h"

namespace fp8::quant {

/// What shares a scale that is made at each call.
enum class DynamicScale : std::uint8_t {
  row,         ///< a row (a token) where scales are per token, else the tensor
  column,      ///< a column, likewise
  tensor,      ///< always the tensor
  probability  ///< values are at most 1: the scale is fixed
};

/// How a kind computes in fp8.
struct NodeHandlerRow {
  std::vector<DynamicScale> inputs = {}, outputs = {};  ///< the scales that it needs, at least
  std::function<std::shared_ptr<NodeHandler>(const NodeScheme& scheme)> make = {};
};

template <class Handler>
std::shared_ptr<NodeHandler> make_handler(const NodeScheme& scheme) {
  return std::make_shared<Handler>(scheme);
}

/// Throws std::invalid_argument for a kind without a handler.
NodeHandlerRow node_handler_row(configs::ModuleKind kind);

/// All there is to say of a kind.
struct NodeKind {
  configs::OwnKind kind;
  measure::ShowCall show = {};  ///< what calibration sees of a call; none: its inputs and outputs as they are
  NodeScaleRule scales = {};    ///< none: of each input (output) for which the handler has a scale, in their order
  NodeHandlerRow handler = {};
};

/// A kind of one's own while this object lives; any thread. Models that have its handlers or watchers let go of them
/// before.
class NodeKindRegistration {
 public:
  /// Throws std::invalid_argument as configs::KindRegistration does, and for a kind without handler.make.
  explicit NodeKindRegistration(NodeKind row);

  configs::ModuleKind kind() const { return kind_.kind(); }

 private:
  configs::KindRegistration kind_;
  std::optional<configs::KindTable<measure::ShowCall>::Entry> show_;
  configs::KindTable<NodeScaleRule>::Entry scales_;
  configs::KindTable<NodeHandlerRow>::Entry handler_;
};

}  // namespace fp8::quant
