// SPDX-License-Identifier: Apache-2.0
#include "lit_classifier.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/relu.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

namespace mnist {

namespace trainer = fp8::trainer;

namespace {

void require(bool holds, const std::string& name, double value, const std::string& allowed) {
  if (!holds)
    throw std::invalid_argument("[LitClassifier] " + name + ": found " + std::to_string(value) +
                                ", allowed: " + allowed);
}

}  // namespace

Classifier::Classifier(std::int64_t hidden)
    : l1_(register_module("l1", torch::nn::Linear(kPixels, hidden))),
      l2_(register_module("l2", torch::nn::Linear(hidden, kClasses))) {}

at::Tensor Classifier::forward(const at::Tensor& images) { return l2_(at::relu(l1_(images.flatten(1)))); }

LitClassifier::LitClassifier(LitClassifierOptions options) : options_(options) {
  require(options.hidden >= 1, "hidden", static_cast<double>(options.hidden), "at least 1");
  require(options.learning_rate > 0, "learning_rate", options.learning_rate, "above 0");
  require(options.step_size >= 1, "step_size", static_cast<double>(options.step_size), "at least 1");
  require(options.gamma > 0, "gamma", options.gamma, "above 0");
  net_ = std::make_shared<Classifier>(options.hidden);
}

at::Tensor LitClassifier::loss_of(const trainer::Batch& batch, const char* accuracy) {
  const at::Tensor logits = net_->forward(batch.tensors.at(0)), &labels = batch.tensors.at(1);
  log(accuracy, logits.argmax(1).eq(labels).to(at::kFloat).mean().item<double>());
  return at::cross_entropy_loss(logits, labels);
}

at::Tensor LitClassifier::training_step(const trainer::Batch& batch, std::int64_t) {
  return loss_of(batch, "train_acc");
}

at::Tensor LitClassifier::validation_step(const trainer::Batch& batch, std::int64_t) {
  return loss_of(batch, "val_acc");
}

at::Tensor LitClassifier::test_step(const trainer::Batch& batch, std::int64_t) { return loss_of(batch, "test_acc"); }

std::vector<at::Tensor> LitClassifier::predict_step(const trainer::Batch& batch, std::int64_t) {
  return {net_->forward(batch.tensors.at(0)).argmax(1)};
}

trainer::Optimizers LitClassifier::configure_optimizers() {
  const auto adam =
      std::make_shared<torch::optim::Adam>(net_->parameters(), torch::optim::AdamOptions(options_.learning_rate));
  const auto schedule =
      std::make_shared<torch::optim::StepLR>(*adam, static_cast<unsigned>(options_.step_size), options_.gamma);
  return {.optimizers = {adam}, .schedulers = {{schedule, trainer::ScheduleInterval::epoch}}};
}

}  // namespace mnist
