// SPDX-License-Identifier: Apache-2.0
// Another module with some of its functions replaced: derive and override.
#pragma once
#include <filesystem>
#include <utility>
#include <vector>

#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

class ModuleAdapter : public TrainingModule {
 public:
  /// The module must outlive this. What it logs is logged by the trainer of this one.
  explicit ModuleAdapter(TrainingModule& inner) : inner_(inner) {}

  torch::nn::Module& network() override { return inner_.network(); }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    return inner().training_step(batch, index);
  }
  at::Tensor validation_step(const Batch& batch, std::int64_t index) override {
    return inner().validation_step(batch, index);
  }
  at::Tensor test_step(const Batch& batch, std::int64_t index) override { return inner().test_step(batch, index); }
  std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t index) override {
    return inner().predict_step(batch, index);
  }
  Optimizers configure_optimizers() override { return inner_.configure_optimizers(); }
  void save_files(const std::filesystem::path& folder) override { inner_.save_files(folder); }
  TrainingState extra_state() override { return inner_.extra_state(); }
  void load_extra_state(const TrainingState& state) override { inner_.load_extra_state(state); }

 protected:
  TrainingModule& inner() {
    inner_.metrics_ = metrics_;
    return inner_;
  }

 private:
  TrainingModule& inner_;
};

}  // namespace fp8::trainer
