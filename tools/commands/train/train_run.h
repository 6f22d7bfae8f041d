// SPDX-License-Identifier: Apache-2.0
// The parts of a run of `fp8 train`: its folder and processes, model and data, precision, callbacks and log.
#pragma once

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

// OUT/train.json: what a run was started with, so that a resumed one is the same run. Texts, configs and recipes are
// the same where their fingerprints are, wherever they lie; the number of steps alone may change.

/// The settings that decide a run's numbers. more: keys that the options alone do not tell (the fingerprints of texts
/// and config, the recipe as it was read).
io::Json train_settings(const TrainOptions& options, const Context& context, const io::Json& more);

/// The steps of a resumed run.
struct ResumedSteps {
  std::int64_t done = 0;  ///< of the newest checkpoint
  std::string warning;    ///< the effect on the learning rate if the number of steps changed
};

/// Checks that the run of `written` (read from `file`) can be resumed as `asked`. Throws io::Error naming the first key
/// that differs, and for fewer steps than are done.
ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& options);

// OUT of `fp8 train`: new, or that of the same run.

/// Makes OUT and train.json in it with `settings`, or finds the run in it that is to be resumed. check(file, written):
/// throws for a different run; true: the outputs of its end are no longer its end. Returns true for a resumed run.
/// Throws io::Error.
bool open_folder(const TrainOptions& options, const io::Json& settings,
                 const std::function<bool(const std::filesystem::path& file, const io::Json& written)>& check);

// The processes that train together, where a launcher started several: they meet, find that they are about to do the
// same, and rank 0 alone writes and speaks.

class TrainRanks {
 public:
  /// Waits for the others. fp8: amaxes are shared as --reduce-amax says. On ranks above 0 the context is quiet from now
  /// on. Throws UsageError, io::Error naming a variable of the launcher, c10::Error naming rank and place.
  TrainRanks(const StrategySettings& settings, bool fp8, Context& context);

  int size() const { return group_ != nullptr ? group_->size() : 1; }
  bool first() const { return group_ == nullptr || group_->rank() == 0; }
  /// Null for one process.
  const std::shared_ptr<runtime::distributed::ProcessGroup>& group() const { return group_; }
  /// The ranks that share amaxes; null: none do.
  const std::shared_ptr<runtime::distributed::ProcessGroup>& amax_group() const { return amax_group_; }
  trainer::StrategyOptions strategy() const;
  /// The variables that said how many ranks there are and where they meet; "" where none did.
  const std::string& said_by() const { return said_by_; }
  /// The one that trains: "hpu_parallel" for auto on several ranks.
  const char* strategy_name() const;

  /// Throws c10::Error on every rank, "[train] rank 1 differs from rank 0: ...", unless all bring the same settings,
  /// version, instruction set and weights. weights: a checksum.
  void check_same(io::Json settings, const std::string& weights) const;
  /// f() on rank 0; the others wait for what it returns, or fail as it does.
  bool on_first(const std::function<bool()>& f) const;

 private:
  StrategySettings settings_;
  std::string said_by_;
  std::shared_ptr<runtime::distributed::ProcessGroup> group_, amax_group_;
};

// The model and the data: a language model and its data, or those of a run file.

/// The chunks of a text as batches of token ids [B, L], in an order drawn anew for each epoch from (seed, epoch).
/// Without threads: a batch is a copy of a few kilobytes that lie in memory already.
class TextBatches : public trainer::BatchSource {
 public:
  /// shuffle: false keeps the order of the text. last, multiple: as a DataLoader has them. non_blocking: batches come
  /// from pinned memory, and in lazy mode their copies wait.
  TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
              trainer::LastBatch last = trainer::LastBatch::keep, std::int64_t multiple = 1, bool non_blocking = false);

  std::int64_t batches() const override { return loader_->batches(); }
  void seek(std::int64_t epoch, std::int64_t batch) override { loader_->seek(epoch, batch); }
  /// tensors[0]: ids [B, L] int64 on the device. tokens: B * L.
  std::optional<trainer::Batch> next() override { return loader_->next(); }
  std::optional<trainer::Batch> deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) override {
    return loader_->deal(epoch, batch, rank, ranks);
  }

  const text::Chunks& chunks() const;
  /// A hash of all ids: a text that changed is another text.
  std::uint64_t fingerprint() const;

 private:
  class Dataset;
  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<data::DataLoader> loader_;
};

// A summary of the data, which ranks compare: each takes every so many batches, so that all must have the same.

/// {"batches", "first batch"}, each batch as [samples, checksum]; of a text "text" too, a checksum of all of it, and of
/// a DataLoader "last batch". Reads what it tells of and leaves the source at the beginning. Throws what next() does.
io::Json facts_of(trainer::BatchSource& source);

struct Start {
  std::shared_ptr<models::CausalLM> model;
  std::string config_text;
  std::filesystem::path tokenizer;
};

/// The model before its first step, f32 on the device.
Start start_of(const TrainOptions& options, const Context& context);

/// The chunks of a text as batches of an evaluation, in order.
TextBatches evaluation_batches(const text::DataFiles& files, const TrainOptions& options, const Context& context,
                               const Start& start);
/// Those of the training, shuffled, for so many ranks.
TextBatches training_batches(const TrainOptions& options, const Context& context, const Start& start, int ranks);

// A language model as something to train: cross entropy of the next token in f32, AdamW with weight decay on matrices.

/// State beside the parameters that checkpoints hold (fp8 scales).
struct StateHooks {
  std::function<trainer::TrainingState()> save = {};
  std::function<void(const trainer::TrainingState&)> load = {};
};

/// Batches are those of TextBatches; its files are a checkpoint that `fp8 evaluate --model` loads.
std::shared_ptr<trainer::TrainingModule> language_model_task(const Start& start, const TrainOptions& options,
                                                             StateHooks hooks = {});

/// Mean of -log softmax(logits[b, i])[ids[b, i + 1]] over i < L - 1, in f32. logits [B, L, V] of any float dtype, ids
/// [B, L], L >= 2.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids);

// The sections optimizer: and lr_scheduler: of a run file, for a model of one's own. They take the place of the model's
// configure_optimizers().
//
//   optimizer     torch.optim.Adam, AdamW, SGD; FusedAdamW, FusedSGD (lightning_habana or habana_frameworks...)
//   lr_scheduler  torch.optim.lr_scheduler.StepLR {step_size, gamma}, of epochs
//                 CosineWithWarmup {warmup, steps, min_factor}, of optimizer steps

/// Nothing to do without an optimizer: the module's own. Throws io::Error naming the place.
std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context);

// --precision and --recipe applied to a model: the plugin's context, the conversion, the fp8 state in checkpoints and
// the log.

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

// The callbacks of `fp8 train`: those of its options, and those that a run file names.

using Callbacks = std::vector<std::shared_ptr<trainer::TrainerCallback>>;

/// The values that a part of a run file may use.
trainer::PartContext part_context(const TrainOptions& options, const Context& context);

/// Those of every rank: what ends training or writes a checkpoint does so on all of them. Throws io::Error naming
/// the place of a part that is wrong.
Callbacks callbacks_of(const TrainOptions& options, const Context& context);

/// Throws the errors of callbacks_of(), before anything is written.
void check_callbacks(const TrainOptions& options, const Context& context);

/// Adds those of rank 0: log.jsonl, and a bar that knows where training starts. steps: of the whole run; -1: not
/// known.
void add_log(Callbacks& callbacks, const TrainOptions& options, const Context& context, const TrainPrecision& precision,
             std::int64_t steps);

/// Says where a run that was asked to stop can go on. Throws Interrupted.
[[noreturn]] void end_early(const TrainOptions& options, const Context& context, const trainer::FitResult& result);

/// The trainer's options, from options and keys of a run file; of a model of one's own without its length.
trainer::TrainerOptions trainer_options(const TrainOptions& options, const TrainPrecision& precision,
                                        const TrainRanks& ranks);

/// Steps of `epochs` epochs of `batches` batches that all ranks share, by what the run says of them.
std::int64_t steps_of_epochs(const TrainOptions& options, std::int64_t batches, int ranks, double epochs);

/// That of --profile, or of a run file; null: none. What it says are warnings of `context`, which must outlive it.
std::shared_ptr<runtime::Profiler> profiler_of(const TrainOptions& options, const Context& context);

/// The settings of a run file that fp8 train has no option for.
void apply(const TrainerKeys& keys, trainer::TrainerOptions& options);

// The writer of a training log (work/snapshots.h).

class TrainLog : public trainer::TrainerCallback {
 public:
  /// more: adds to a step's entry what else is to be logged. Opens the file and locks it for this process; throws
  /// io::Error if another run holds it.
  TrainLog(std::filesystem::path path, std::function<void(io::Json&)> more);

  /// Throws io::Error if a run is writing this log; nothing if there is none.
  static void refuse_if_locked(const std::filesystem::path& path);

  bool is_logger() const override { return true; }
  /// The log ends with `step` from here on. Throws io::Error if it does not reach so far.
  void on_fit_start(trainer::Trainer&, std::int64_t step) override;
  /// The step's line, and a row of the same numbers to each of the trainer's loggers.
  void on_step_end(trainer::Trainer& trainer, const trainer::StepReport& report) override;
  void on_save_checkpoint(trainer::Trainer&, std::int64_t step) override;

 private:
  trainer::LogFile file_;
  std::function<void(io::Json&)> more_;
};

// --load-best: the weights of OUT are those of the checkpoint of lowest eval_loss.

/// The first that keeps the best; null: none does.
std::shared_ptr<const trainer::ModelCheckpoint> best_of(
    const std::vector<std::shared_ptr<trainer::TrainerCallback>>& callbacks);

/// Replaces the weights in `out` by those of `checkpoint`, a folder of the same run with the same files. Nothing if
/// that is empty, for no evaluation has had a number. Throws io::Error.
void take_weights(const std::filesystem::path& checkpoint, const std::filesystem::path& out);

}  // namespace fp8::commands
