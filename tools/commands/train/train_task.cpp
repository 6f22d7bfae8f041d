// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_task.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "fp8/runtime/optim/muon.h"
#include "fp8/tools/models/save.h"

namespace fp8::commands {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids) {
  const auto predicting = logits.narrow(1, 0, logits.size(1) - 1).reshape({-1, logits.size(2)});
  return at::cross_entropy_loss(predicting.to(at::kFloat), ids.narrow(1, 1, ids.size(1) - 1).reshape({-1}));
}

LanguageModelTask::LanguageModelTask(std::shared_ptr<models::CausalLM> model, OptimizerSettings settings, Files files,
                                     StateHooks hooks)
    : model_(std::move(model)), settings_(settings), files_(std::move(files)), hooks_(std::move(hooks)) {}

torch::nn::Module& LanguageModelTask::network() { return *model_; }

at::Tensor LanguageModelTask::training_step(const trainer::Batch& batch, std::int64_t) {
  const auto& ids = batch.tensors.at(0);
  return next_token_loss(model_->forward(ids), ids);
}

std::vector<at::Tensor> LanguageModelTask::predict_step(const trainer::Batch& batch, std::int64_t) {
  const auto& ids = batch.tensors.at(0);
  const auto logits = model_->forward(ids).to(at::kFloat);
  const auto logs = at::log_softmax(logits.narrow(1, 0, logits.size(1) - 1), -1);
  return {-logs.gather(-1, ids.narrow(1, 1, ids.size(1) - 1).unsqueeze(-1)).squeeze(-1), logits.argmax(-1)};
}

trainer::Optimizers LanguageModelTask::configure_optimizers() {
  namespace optim = runtime::optim;
  const bool muon = settings_.kind == OptimizerSettings::Kind::muon;
  std::vector<at::Tensor> hidden, matrices, vectors;  // vectors: norms and biases, which do not decay
  std::unordered_set<const void*> done;
  for (const auto& item : model_->named_parameters()) {
    const auto& p = item.value();
    if (!done.insert(p.unsafeGetTensorImpl()).second) continue;
    (muon && optim::is_hidden_weight(item.key(), p) ? hidden : p.dim() >= 2 ? matrices : vectors).push_back(p);
  }
  const auto adamw = [&](double decay) {
    return optim::FusedAdamWOptions(settings_.lr)
        .betas({settings_.beta1, settings_.beta2})
        .eps(settings_.eps)
        .eps_mode(settings_.eps_mode == OptimizerSettings::EpsMode::habana ? optim::EpsMode::habana
                                                                           : optim::EpsMode::torch)
        .weight_decay(decay);
  };
  // Muon's updates as large as AdamW's: one learning rate serves both.
  const auto orthogonal =
      optim::MuonOptions(settings_.lr).weight_decay(settings_.weight_decay).ratio(optim::MuonRatio::match_rms_adamw);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!hidden.empty()) groups.emplace_back(hidden, std::make_unique<optim::MuonOptions>(orthogonal));
  groups.emplace_back(matrices, std::make_unique<optim::FusedAdamWOptions>(adamw(settings_.weight_decay)));
  groups.emplace_back(vectors, std::make_unique<optim::FusedAdamWOptions>(adamw(0)));
  trainer::Optimizers optimizers;
  if (muon)
    optimizers.optimizers.push_back(std::make_shared<optim::Muon>(groups, orthogonal));
  else
    optimizers.optimizers.push_back(std::make_shared<optim::FusedAdamW>(groups, adamw(settings_.weight_decay)));
  optimizers.lr_factor = lr_factor(settings_);
  return optimizers;
}

void LanguageModelTask::save_files(const std::filesystem::path& folder) {
  models::save_model(*model_, files_.config, files_.tokenizer, folder, files_.dtype);
}

}  // namespace fp8::commands
