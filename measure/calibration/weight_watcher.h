// SPDX-License-Identifier: Apache-2.0
// The watcher that calibration hangs on a weight: lets the op run, then looks.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/intercept/op_handler.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::measure {

class WeightWatcher final : public runtime::OpHandler {
 public:
  /// records: the session's records of the modules that own the weight (several when tied).
  WeightWatcher(std::shared_ptr<CalibrationSession> session, std::optional<at::Tensor> bias)
      : session_(std::move(session)), bias_(std::move(bias)) {}

  void add_record(std::size_t index) { records_.push_back(index); }
  const std::vector<std::size_t>& records() const { return records_; }
  /// Null once retired.
  std::shared_ptr<CalibrationSession> session() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return session_;
  }
  /// Ends the watching: calls pass through, session and bias are let go.
  void retire();

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override;
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return session() != nullptr ? "measured" : "measured before"; }

 private:
  mutable std::mutex mutex_;  ///< guards session_ and bias_: forwards may run while another thread finalizes
  std::shared_ptr<CalibrationSession> session_;
  std::optional<at::Tensor> bias_;
  std::vector<std::size_t> records_;
};

}  // namespace fp8::measure
