// SPDX-License-Identifier: Apache-2.0
// The watcher that calibration hangs on a weight: lets the op run, then looks.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fp8/measure/calibration/recorder.h"
#include "fp8/runtime/intercept/op_handler.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::measure {

class WeightWatcher final : public runtime::OpHandler {
 public:
  WeightWatcher(std::shared_ptr<Recorder> recorder, std::optional<at::Tensor> bias)
      : recorder_(std::move(recorder)), bias_(std::move(bias)) {}

  /// records: of the modules that own the weight (several when tied).
  void add_record(std::size_t index) { records_.push_back(index); }
  const std::vector<std::size_t>& records() const { return records_; }
  /// Null once retired.
  std::shared_ptr<Recorder> recorder() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return recorder_;
  }
  /// Ends the watching: calls pass through, recorder and bias are let go.
  void retire();

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override;
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return recorder() != nullptr ? "measured" : "measured before"; }

 private:
  mutable std::mutex mutex_;  ///< guards recorder_ and bias_: forwards may run while another thread finalizes
  std::shared_ptr<Recorder> recorder_;
  std::optional<at::Tensor> bias_;
  std::vector<std::size_t> records_;
};

/// Throws c10::Error, naming the module, for a weight that can't be watched: not on hpu, in fp8, not contiguous.
void check_watchable(const WeightModule& m);

/// Null if none.
WeightWatcher* watcher_on(const at::Tensor& weight);

/// Takes a watcher that was retired off its weight; another calibration's stays.
void remove_retired(const at::Tensor& weight);

}  // namespace fp8::measure
