// SPDX-License-Identifier: Apache-2.0
// The classifier of Lightning's examples for Gaudi: two linear layers over the pixels of an image.
#pragma once
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/trainer/training_module.h"

namespace mnist {

constexpr std::int64_t kPixels = 28 * 28, kClasses = 10;

struct LitClassifierOptions {
  std::int64_t hidden = 128;
  double learning_rate = 1e-3;  ///< of Adam
  std::int64_t step_size = 1;   ///< epochs of StepLR
  double gamma = 0.7;           ///< factor of the rate after each step_size
};

/// images [N, ...] of 28 x 28 numbers each to logits [N, 10].
class Classifier : public torch::nn::Module {
 public:
  explicit Classifier(std::int64_t hidden);
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Linear l1_, l2_;
};

/// Batches are {images, labels [N] int64}. Logs train_acc, val_acc and test_acc; the losses that its steps return are
/// train_loss, val_loss and test_loss.
class LitClassifier : public fp8::trainer::TrainingModule {
 public:
  /// Weights come from LibTorch's generator. Throws std::invalid_argument naming the option, the value and what is
  /// allowed.
  explicit LitClassifier(LitClassifierOptions options = {});

  torch::nn::Module& network() override { return *net_; }
  at::Tensor training_step(const fp8::trainer::Batch& batch, std::int64_t index) override;
  at::Tensor validation_step(const fp8::trainer::Batch& batch, std::int64_t index) override;
  at::Tensor test_step(const fp8::trainer::Batch& batch, std::int64_t index) override;
  /// {classes [N] int64}.
  std::vector<at::Tensor> predict_step(const fp8::trainer::Batch& batch, std::int64_t index) override;
  fp8::trainer::Optimizers configure_optimizers() override;

 private:
  at::Tensor loss_of(const fp8::trainer::Batch& batch, const char* accuracy);

  LitClassifierOptions options_;
  std::shared_ptr<Classifier> net_;
};

}  // namespace mnist
