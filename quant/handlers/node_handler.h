// SPDX-License-Identifier: Apache-2.0
// The base of the handlers of modules without a weight: products, softmax, attention, key-value caches, mixtures of
// experts.
#pragma once

#include "fp8/measure/calibration/watchers.h"
#include "fp8/quant/handlers/quantizer.h"

namespace fp8::quant {

class Fp8KvCacheHandler;

class NodeHandler : public runtime::ModuleHandler {
 public:
  static constexpr std::string_view kKind = "fp8::quant::NodeHandler";
  std::string_view kind() const final { return kKind; }
  /// Throws std::invalid_argument for scales that are missing, not positive or not finite.
  explicit NodeHandler(NodeScheme scheme);

  const NodeScheme& scheme() const { return scheme_; }
  std::string describe() const override { return scheme_.describe(); }
  /// Itself, where it is a key-value cache's.
  virtual const Fp8KvCacheHandler* kv_cache() const { return nullptr; }

  /// Puts another scale in force, from the next call on. Not while a forward runs. Throws std::invalid_argument for an
  /// index that there is none of, a dynamic scheme, or a value that is not positive and finite. A key-value cache has
  /// one scale for both sides.
  void set_input_scale_inv(std::size_t index, float scale_inv);
  void set_output_scale_inv(std::size_t index, float scale_inv);

 protected:
  /// The i-th input's or output's quantizer.
  const Quantizer& input(std::size_t i) const { return inputs_.at(i); }
  const Quantizer& output(std::size_t i) const { return outputs_.at(i); }

 private:
  void make_quantizers();

  NodeScheme scheme_;
  std::vector<Quantizer> inputs_, outputs_;
};

/// The handler in a module's slot, where the module is in fp8; else null.
inline NodeHandler* node_handler(const runtime::ModuleSlot& slot) {
  return runtime::handler_as<NodeHandler>(slot.handler.get());
}

/// The handler of scheme.kind.
std::shared_ptr<NodeHandler> make_node_handler(const NodeScheme& scheme);

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

/// The values that share a scale which is made at each call.
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
  measure::ShowCall show = {};  ///< tensors of a call that calibration sees; none: its inputs and outputs
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
