// SPDX-License-Identifier: Apache-2.0
// The watcher that calibration puts into the slot of a module without a weight: lets the operation run, then looks.
#pragma once

#include "fp8/measure/calibration/recorder.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::measure {

/// The tensors of a call that calibration sees: as many tensors as the module's kind has inputs and outputs.
struct Shown {
  std::vector<at::Tensor> inputs, outputs;
};
using ShowCall = std::function<Shown(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs)>;
/// Of kinds of one's own (quant::NodeKindRegistration). Without a row calibration is shown all as it is.
configs::KindTable<ShowCall>& shown_calls();

class ModuleWatcher final : public runtime::ModuleHandler {
 public:
  static constexpr std::string_view kKind = "fp8::measure::ModuleWatcher";
  std::string_view kind() const override { return kKind; }
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

// The watcher that calibration hangs on a weight: lets the op run, then looks.

class WeightWatcher final : public runtime::OpHandler {
 public:
  static constexpr std::string_view kKind = "fp8::measure::WeightWatcher";
  std::string_view kind() const override { return kKind; }
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

// Values that fused operations do not return, computed for calibration: the largest probability of attention,
// and the largest activation of each expert of a mixture.

/// max P of P = softmax(q . k^T * scale + mask), f32, before dropout. Row by row it is 1 / sum exp(l - max l), so P
/// itself is never made; memory: logits of 2^22 elements at a time. Rows that see nothing count as 0.
float largest_probability(const runtime::AttentionCall& call);

/// Per held expert e: max |act(x . w1[e]) * (x . w2[e])| over the tokens routed to it, in the inputs' own arithmetic; 0
/// without tokens; NaN if one is NaN.
std::vector<float> expert_amax(const runtime::MoeCall& call);

}  // namespace fp8::measure
