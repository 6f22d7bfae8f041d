// SPDX-License-Identifier: Apache-2.0
// The results of predict() as a file: each tensor of each batch by its place, in the order of the batches whatever rank
// had them.
//
//   auto writer = std::make_shared<PredictionWriter>("out/predictions.safetensors");
//   Trainer({.max_steps = 1}, {writer}).predict(module, data, /*return_predictions=*/false);
//
//   batch.00000000.0, batch.00000000.1, batch.00000001.0, ...    predict_step() of two tensors
//   rank.00001.batch.00000000.0                                  where ranks have data of their own
//                                                                (StrategyOptions::use_distributed_sampler false)
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

/// Every rank has one; rank 0's writes, and needs the memory of all predictions until then.
class PredictionWriter : public TrainerCallback {
 public:
  /// file: the folder it lies in is made. A file that was there is replaced when the last batch is done.
  explicit PredictionWriter(std::filesystem::path file);

  void on_predict_start(Trainer& trainer) override;
  void on_predict_batch_end(Trainer& trainer, const Batch& batch, std::int64_t index,
                            const std::vector<at::Tensor>& outputs) override;
  /// Throws io::Error for what can't be written, on every rank.
  void on_predict_end(Trainer& trainer) override;

 private:
  void write() const;

  std::filesystem::path file_;
  std::map<std::string, at::Tensor> tensors_ = {};  ///< on the CPU
};

}  // namespace fp8::trainer
