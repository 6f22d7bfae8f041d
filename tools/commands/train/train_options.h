// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 train`: the values, and one row for each option with all that is known of it. The command line,
// run files, train.json and the files of Optimum read the same rows. No torch here.
//
//   OUT/metrics.csv, OUT/tensorboard/events.out.tfevents.*      --logger: the numbers of log.jsonl
//   OUT/best/step=200-val_loss=1.2345/                          --save-best: a checkpoint as those to go on from
#pragma once

#include "fp8/configs/training/gaudi_config.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/train/run_tree.h"

namespace fp8::commands {

inline constexpr const char* kDefaultRecipe = "habana";
inline constexpr char kCsvFile[] = "metrics.csv", kTensorBoardFolder[] = "tensorboard", kBestFolder[] = "best";

struct OptimizerSettings {
  enum class Kind : std::uint8_t { adamw, muon };
  using Schedule = trainer::LrShape;
  enum class EpsMode : std::uint8_t { torch, habana };  ///< the place of eps in the formula: optim::EpsMode
  Kind kind = Kind::adamw;
  double lr = 1e-3, min_lr = 0;  ///< at the end of the schedule
  Schedule schedule = Schedule::cosine;
  std::int64_t warmup = 0, warmup_from = 1, steps = 0;  ///< warmup_from: what the first step counts as, 0 or 1
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  EpsMode eps_mode = EpsMode::torch;
};
FP8_ENUM_NAMES(OptimizerSettings::Kind, {adamw, "adamw"}, {muon, "muon"});
FP8_ENUM_NAMES(OptimizerSettings::EpsMode, {torch, "torch"}, {habana, "habana"});

/// Of step n, from 0: the learning rate as a share of settings.lr.
inline trainer::LrSchedule lr_factor(const OptimizerSettings& settings) {
  return {.shape = settings.schedule,
          .warmup = settings.warmup,
          .warmup_from = settings.warmup_from,
          .steps = settings.steps,
          .min_factor = settings.lr > 0 ? settings.min_lr / settings.lr : 0};
}

/// Of several processes that train together.
struct StrategySettings {
  std::string strategy = "auto";  ///< a name of trainer::StrategyKind, or of an engine that comes with Python
  std::int64_t bucket_cap_mb = 230, timeout = kRankTimeout;
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;
  std::optional<kernels::FloatType> comm_hook, fusion_buffer_dtype;  ///< empty: none; bf16
  std::string reduce_amax = "all";                                   ///< "all", "off", or ranks that share amaxes

  trainer::StrategyKind kind() const;  ///< of a strategy of this program
  /// Ranks that share amaxes, of `size`; 0: none do. Throws UsageError if `size` is no multiple of them.
  int amax_ranks(int size) const;
};

struct CallbackSettings {
  std::vector<std::string> loggers;  ///< "csv", "tensorboard"
  double max_time = 0;               ///< seconds; 0: no limit
  std::int64_t patience = 0;         ///< evaluations; 0: no end
  std::int64_t save_best = 0;        ///< 0: none
  bool clip_by_value = false, load_best = false;
};

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

/// Settings of a run file that are no options.
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

struct TrainOptions {
  std::filesystem::path init, model, tokenizer, out, eval;
  text::DataFiles data;
  std::int64_t batch = 16, seq_len = 256, grad_accum = 1, eval_every = 0, eval_batch = 0, save_every = 0,
               keep_checkpoints = 2;
  std::int64_t throughput_warmup = 0, statistics_every = 10, logging_steps = 500;
  OptimizerSettings optimizer = {.steps = 1000};
  double epochs = 0, warmup_ratio = 0;  ///< 0: --steps, --warmup; else what those become when the data is known
  double clip = 1;
  std::string precision = "bf16-mixed", recipe;  ///< recipe: empty: kDefaultRecipe
  std::vector<std::string> keep;                 ///< empty: lm_head and embeddings
  std::string measurements;                      ///< warm start; empty: none
  kernels::FloatType save_dtype = kernels::FloatType::BF16;
  trainer::NonFinite nonfinite = trainer::NonFinite::error;
  std::optional<trainer::LastBatch> last_batch;  ///< none: keep, in lazy mode fill
  ProfileOptions profile;
  StrategySettings ranks;
  CallbackSettings callbacks;
  RunSettings run;
  bool resume = false, overwrite = false, activation_checkpointing = false, plan = false, count_graphs = false;
  bool cpu_amp = false;  ///< bf16-mixed is autocast on the CPU
  bool eval_each_epoch = false, save_each_epoch = false, drop_last = false, whole_time = false, minimize_memory = false;
  bool hpu_graphs = false, hpu_graphs_inference = false;  ///< of training steps, of those of evaluations
  std::int64_t max_hpu_graphs = 10;
  bool lazy = false, pipelining = false;
  bool non_blocking = false;  ///< copies of batches
  std::filesystem::path gaudi_config, training_args;
  std::optional<configs::AutocastOps> autocast_ops;  ///< of gaudi_config; empty: the environment's, or the default
};

/// Without --drop-last, which goes before it.
inline trainer::LastBatch last_batch_of(const TrainOptions& o) {
  return o.last_batch.value_or(o.lazy ? trainer::LastBatch::fill : trainer::LastBatch::keep);
}

/// The value of an option: how it is declared, which sets its type and range, and its value as train.json has it.
struct TrainField {
  std::function<void(Options&, const std::string& flag, const std::string& help)> declare;
  std::function<io::Json()> value;
  bool is_text = false;  ///< or a list of texts: messages quote it
};

/// The columns beside the value; empty: nothing. A record with a '.' is there only if the value is not the
/// default; one with a '?' is null for the default.
struct TrainColumns {
  const char* key = "";         ///< of a run file, for the same value: "trainer.max_steps", "data.batch_size"
  const char* record = "";      ///< in train.json, which --resume compares: "lr", "callbacks.patience", "drop_last?"
  const char* needs = "";       ///< "eval": this option has an effect with --eval; "precision=fp8": with that value
  const char* instead_of = "";  ///< an option that must not be given beside this one
  bool language_model = false;  ///< without an effect on a model of one's own

  constexpr TrainColumns with_key(const char* text) const { return with(&TrainColumns::key, text); }
  constexpr TrainColumns recorded(const char* text) const { return with(&TrainColumns::record, text); }
  constexpr TrainColumns needing(const char* text) const { return with(&TrainColumns::needs, text); }
  constexpr TrainColumns replacing(const char* text) const { return with(&TrainColumns::instead_of, text); }
  constexpr TrainColumns of_language_models() const { return with(&TrainColumns::language_model, true); }

 private:
  template <class T>
  constexpr TrainColumns with(T TrainColumns::*member, T value) const {
    TrainColumns copy = *this;
    copy.*member = value;
    return copy;
  }
};

/// One option. Lightning's key stands here; Optimum's keys name the row (configs/training/optimum.json).
struct TrainRow {
  std::string name;  ///< "eval_every": --eval-every on the command line, fp8.eval_every in a run file
  TrainField field;
  std::string help = {};
  TrainColumns columns = {};

  std::string flag() const { return configs::flag_of(name); }
};

/// The rows in the order of the help. They refer to `options`. Options that every command has stand in it for their
/// keys alone, without a field.
std::vector<TrainRow> train_rows(TrainOptions& options);
/// The rows of TrainOptions{}.
const std::vector<TrainRow>& train_table();
/// The row of a name ("eval_every"), or of a key in a run file; null: there is none.
const TrainRow* find_option(std::string_view name);
const TrainRow* find_key(std::string_view key);
/// row: one of train_rows(). Returns true if its value is not the default.
bool is_set(const TrainRow& row);
/// "a b": "a", "b".
std::vector<std::string> words_of(std::string_view text);

/// The command's work, with options that passed its checks: train.cpp.
extern Late<void(const TrainOptions& options, Context& context)> train_model;

// Optimizer steps of a run that is asked for in epochs and shares. No torch here.

/// Turns --epochs, --warmup-ratio, --eval-each-epoch and --save-each-epoch into steps. steps_of: so many epochs, a
/// part of a step being one, as in transformers (trainer::steps_of_epochs). Throws UsageError where that does not fit
/// the rest.
void count_steps(TrainOptions& options, const std::function<std::int64_t(double epochs)>& steps_of);

/// Throws UsageError for more steps of some kind than --steps.
void check_steps(const TrainOptions& options);

// The keys of a run file: each is an option of fp8 train, a setting of the trainer, or has a sentence.
// Names are those of LightningCLI's files. No torch here.
//
//   seed_everything --seed                        trainer.precision               --precision
//   trainer.default_root_dir --out                trainer.accumulate_grad_batches --grad-accum
//   trainer.max_steps --steps                     trainer.gradient_clip_val       --clip  (null: 0)
//   trainer.max_epochs --epochs                   trainer.strategy, accelerator   --strategy, --device
//   model.init_args.*, data.init_args.*,          of LanguageModel and TextData: --init, --data, --lr, ...
//   optimizer.init_args.*                         (other models: runtime/trainer/parts/part_registry.h)
//   fp8.NAME                                      any option of fp8 train; it wins over the keys above

/// Names of the model and the data that the options of fp8 train describe.
inline constexpr const char* kLanguageModel = "LanguageModel";
inline constexpr const char* kTextData = "TextData";

/// Reads what they name and gives `options` and `run` what it says. Throws io::Error naming place and key, UsageError
/// for a key that is no option of a run file.
RunTree take_run_files(Options& options, RunSettings& run);

/// The tree with what the command line gives under its key of above or fp8.NAME, what other files gave (files: those
/// options), and the defaults of all others: a run file that says it all.
RunTree resolved(RunTree tree, const Options& options, const RunSettings& run,
                 const std::vector<std::string>& files = {});

// The section `trainer:` of a run file. Not for users of the library. No torch here.

/// A scalar in the words of the command line. Throws io::Error "PLACE: ...".
std::string option_text(const io::Json& value, const std::string& place);

void take_trainer(const RunTree& tree, Options& options, RunSettings& run);

}  // namespace fp8::commands
