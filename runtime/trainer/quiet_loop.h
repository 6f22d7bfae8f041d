// SPDX-License-Identifier: Apache-2.0
// The common part of validation, test and prediction: no gradients, eval mode, the batches that are this rank's, and
// what all ranks know of them at the end. Not for users.
//
//   QuietLoop loop({"test", "limit_test_batches", options.limit_test_batches}, options, network, source);
//   while (const Batch* batch = loop.next()) loop.done(loss of *batch);
//   loop.merge();                                                         loop.loss(), loop.speed("test")
#pragma once
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/trainer/batch_source.h"
#include "fp8/runtime/trainer/metrics.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

/// eval() while it lives, whatever ends it. A part that its owner keeps in eval mode stays so.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& network);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> before_;
};

class QuietLoop {
 public:
  struct Kind {
    const char *name, *limit_name;  ///< in messages
    BatchLimit limit;
    std::int64_t warmup_steps = 0;  ///< left out of the speed
  };

  /// Throws std::invalid_argument for data without batches, and for a limit that leaves none.
  QuietLoop(const Kind& kind, const TrainerOptions& options, torch::nn::Module& network, BatchSource& source);

  std::int64_t batches() const { return batches_; }  ///< of all ranks that share a source
  std::int64_t index() const { return index_; }      ///< of the batch at hand

  /// This rank's next batch; null: it has had all. Throws std::invalid_argument for one that is empty or missing.
  const Batch* next();
  /// The batch at hand is done.
  void done(double loss = 0);

  /// All ranks call it once, after their last batch.
  void merge();
  /// After merge(). Mean, in the order of the batches, on whatever rank: the bits of one process.
  double loss() const;
  std::int64_t samples() const;
  io::Json speed(const std::string& split) const;

 private:
  struct Sums {
    std::int64_t samples = 0, tokens = 0;
  };
  /// Of all batches, or of the warm-up's.
  Sums sums(bool warmup) const;

  Kind kind_;
  at::NoGradGuard no_grad_;
  EvalMode eval_mode_;
  BatchSource& source_;
  std::shared_ptr<runtime::distributed::ProcessGroup> group_;  ///< null for one rank
  BatchShare share_;
  std::int64_t batches_, index_;
  std::optional<Batch> batch_;
  std::vector<double> parts_;  ///< loss, weight, samples of each batch: one rank's, else 0
  SpeedInput speed_;
};

}  // namespace fp8::trainer
