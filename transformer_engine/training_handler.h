// SPDX-License-Identifier: Apache-2.0
// What a converted module's weight carries while it learns: inside an enabled fp8_autocast region its linear products run in fp8, elsewhere
// every op is the op itself. The parameter keeps its dtype, its values and its identity.
#pragma once
#include <atomic>
#include <memory>

#include "fp8/runtime/intercept/op_handler.h"
#include "fp8/transformer_engine/fp8_linear.h"

namespace fp8::te {

class TrainingHandler final : public runtime::OpHandler {
 public:
  TrainingHandler(std::shared_ptr<Fp8State> state, Fp8LinearOptions options) : state_(std::move(state)), options_(options) {}

  const std::shared_ptr<Fp8State>& state() const { return state_; }

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override { return weight; }
  bool owns_values() const override { return false; }
  std::string describe() const override;

  /// Taken off on purpose (restore, another conversion): ConvertedWeights does not put it back.
  void retire() { retired_ = true; }
  bool retired() const { return retired_; }

 private:
  std::shared_ptr<Fp8State> state_;
  Fp8LinearOptions options_;
  std::atomic<bool> retired_{false};
};

/// The handler on a parameter; null if it has none of these.
TrainingHandler* training_handler(const at::Tensor& parameter);

}  // namespace fp8::te
