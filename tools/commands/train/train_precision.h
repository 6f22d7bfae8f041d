// SPDX-License-Identifier: Apache-2.0
// --precision and --recipe applied to a model: the plugin's context, the conversion, the fp8 state in checkpoints and
// the log.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/train/train_start.h"

namespace torch::nn {
class Module;
}

namespace fp8::commands {

class TrainPrecision {
 public:
  /// Converts the model for fp8. With --dialect this thread emulates the device of that dialect while this lives.
  /// amax_group: the ranks that have one amax; null: this one alone. Throws UsageError for options that this device or
  /// precision can't take.
  TrainPrecision(const TrainOptions& options, const Context& context, std::shared_ptr<torch::nn::Module> model,
                 std::shared_ptr<runtime::distributed::ProcessGroup> amax_group = nullptr);
  ~TrainPrecision();
  TrainPrecision(const TrainPrecision&) = delete;
  TrainPrecision& operator=(const TrainPrecision&) = delete;

  /// --dry-run: what would be converted, as {"modules": [{"name", "type", "scheme", "bytes", "operand_bytes",
  /// "flops_per_row", "expected_error"}], "kept": [{"name", "reason"}], "warnings"} and as a table. The model stays as
  /// it is. Throws as the constructor.
  struct Plan {
    io::Json json;
    std::string text;
  };
  static Plan plan(const TrainOptions& options, const Context& context, std::shared_ptr<torch::nn::Module> model);

  /// `options` with every forward in the precision's context; for 32-true on the CPU as they are. Amaxes that could not
  /// be shared are an error of the step. This must outlive the trainer.
  trainer::TrainerOptions around(trainer::TrainerOptions options) const;
  /// Keys for train.json: the recipe as it was read, the fingerprint of --measurements.
  io::Json settings() const;
  /// State that the model's parameters do not hold.
  StateHooks state_hooks() const;
  /// Adds "fp8" to a step's line in the log; empty without fp8.
  std::function<void(io::Json&)> log_hook() const;
  /// Writes the amaxes of training as a measurement, FOLDER/inc_output_hooks_maxabs.json and so on, which
  /// `fp8 quantize --measurements FOLDER` reads. Nothing without fp8, or with recipes that keep no amaxes: only
  /// habana and nvidia do.
  void write_measurements(const std::filesystem::path& folder);
  /// Keys for --json: how many modules are in fp8, and where their measurement is (null: none was written).
  io::Json summary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fp8::commands
