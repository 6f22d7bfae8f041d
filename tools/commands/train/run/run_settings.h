// SPDX-License-Identifier: Apache-2.0
// What a run file asks of `fp8 train` beyond its options. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/parts/part_spec.h"

namespace fp8::commands {

enum class Stage : std::uint8_t { fit, validate, test, predict };

/// Keys of `trainer:` that fp8 train has no option for; empty: what the command does without a file.
struct TrainerKeys {
  using Limit = std::variant<std::int64_t, double>;  ///< batches, or a share of them: trainer::BatchLimit
  std::optional<Limit> limit_train_batches, limit_val_batches, limit_test_batches, limit_predict_batches,
      overfit_batches, val_check_interval;
  /// max_epochs -1: without end. check_val_every_n_epoch 0: null, so val_check_interval counts from epoch to epoch.
  std::optional<std::int64_t> check_val_every_n_epoch, fast_dev_run, num_sanity_val_steps, log_every_n_steps, max_steps,
      max_epochs;
  std::map<std::int64_t, std::int64_t> accumulate_grad_batches;  ///< by epoch; empty: --grad-accum
  std::optional<bool> detect_anomaly, use_distributed_sampler, enable_checkpointing, enable_progress_bar;
  std::optional<std::string> deterministic;  ///< "true", "false", "warn"
  std::string devices = "auto";              ///< "auto" or a count
  std::int64_t num_nodes = 1;
  struct SimpleProfiler {
    std::string dirpath = {}, filename = {};
    bool extended = true;
  };
  std::optional<SimpleProfiler> simple_profiler;
};

struct RunSettings {
  Stage stage = Stage::fit;
  std::vector<std::string> configs, dotted;  ///< files; "--trainer.max_steps=5"
  bool print_config = false;
  /// Of registered names; no model: the language model that the options name.
  std::optional<trainer::Part> model, data, optimizer, lr_scheduler;
  std::vector<trainer::Part> callbacks, loggers;
  std::filesystem::path test_data, predict_data;  ///< of the language model
  std::filesystem::path ckpt_path;                ///< of the other stages: a checkpoint, "last"; empty: the model's own
  TrainerKeys trainer;
  io::Json tree;  ///< all of it, for OUT/train.json
};

}  // namespace fp8::commands
