// SPDX-License-Identifier: Apache-2.0
// The watcher that calibration puts into the slot of a module without a weight: lets the operation run, then looks.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fp8/configs/module_types.h"
#include "fp8/measure/calibration/recorder.h"
#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::measure {

/// What calibration is shown of a call: as many tensors as the module's kind has inputs and outputs.
struct Shown {
  std::vector<at::Tensor> inputs, outputs;
};
using ShowCall = std::function<Shown(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs)>;
/// Of kinds of one's own (quant::NodeKindRegistration). Without a row calibration is shown all as it is.
configs::KindTable<ShowCall>& shown_calls();

class ModuleWatcher final : public runtime::ModuleHandler {
 public:
  /// record: of the module.
  ModuleWatcher(std::shared_ptr<Recorder> recorder, std::size_t record)
      : recorder_(std::move(recorder)), record_(record) {}

  /// Null once retired.
  std::shared_ptr<Recorder> recorder() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return recorder_;
  }
  /// Ends the watching: calls pass through, the recorder is let go.
  void retire();

  at::Tensor matmul(const runtime::MatmulCall& call) override;
  at::Tensor softmax(const runtime::SoftmaxCall& call) override;
  at::Tensor attention(const runtime::AttentionCall& call) override;
  at::Tensor mixture_of_experts(const runtime::MoeCall& call) override;
  std::vector<at::Tensor> tensors(const runtime::TensorsCall& call) override;
  at::Tensor store(const at::Tensor& current) override;
  at::Tensor fetch(const at::Tensor& stored, at::ScalarType dtype) override;
  std::string describe() const override { return recorder() != nullptr ? "measured" : "measured before"; }

 private:
  mutable std::mutex mutex_;  ///< guards recorder_: forwards may run while another thread finalizes
  std::shared_ptr<Recorder> recorder_;
  std::size_t record_;
};

}  // namespace fp8::measure
