// SPDX-License-Identifier: Apache-2.0
// What the handlers of modules without a weight share: products, softmax, attention, key-value caches, mixtures of
// experts.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fp8/quant/handlers/quantizer.h"
#include "fp8/quant/scheme/node_scheme.h"
#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::quant {

class NodeHandler : public runtime::ModuleHandler {
 public:
  /// Throws std::invalid_argument for scales that are missing, not positive or not finite.
  explicit NodeHandler(NodeScheme scheme);

  const NodeScheme& scheme() const { return scheme_; }
  std::string describe() const override { return scheme_.describe(); }

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

/// The handler of scheme.kind.
std::shared_ptr<NodeHandler> make_node_handler(const NodeScheme& scheme);

}  // namespace fp8::quant
