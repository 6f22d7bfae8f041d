// SPDX-License-Identifier: Apache-2.0
// A language model as something to train: cross entropy of the next token in f32, AdamW with weight decay on matrices.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/trainer/training_module.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::commands {

/// State beside the parameters that checkpoints hold (fp8 scales).
struct StateHooks {
  std::function<trainer::TrainingState()> save = {};
  std::function<void(const trainer::TrainingState&)> load = {};
};

class LanguageModelTask : public trainer::TrainingModule {
 public:
  struct Files {
    std::string config;               ///< text of config.json of what is trained
    std::filesystem::path tokenizer;  ///< folder; may be empty
    at::ScalarType dtype;             ///< of saved weights
  };

  LanguageModelTask(std::shared_ptr<models::CausalLM> model, OptimizerSettings settings, Files files,
                    StateHooks hooks = {});

  torch::nn::Module& network() override;
  /// Mean over the B (L - 1) predicted tokens of a batch from TextBatches.
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t index) override;
  /// -log softmax(logits[b, i])[ids[b, i + 1]], f32 [B, L - 1], and the likeliest next tokens, int64 [B, L].
  std::vector<at::Tensor> predict_step(const trainer::Batch& batch, std::int64_t index) override;
  trainer::Optimizers configure_optimizers() override;
  /// A checkpoint that `fp8 evaluate --model` loads.
  void save_files(const std::filesystem::path& folder) override;
  trainer::TrainingState extra_state() override { return hooks_.save ? hooks_.save() : trainer::TrainingState{}; }
  void load_extra_state(const trainer::TrainingState& state) override {
    if (hooks_.load) hooks_.load(state);
  }

 private:
  std::shared_ptr<models::CausalLM> model_;
  OptimizerSettings settings_;
  Files files_;
  StateHooks hooks_;
};

/// Mean of -log softmax(logits[b, i])[ids[b, i + 1]] over i < L - 1, in f32. logits [B, L, V] of any float dtype, ids
/// [B, L], L >= 2.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids);

}  // namespace fp8::commands
