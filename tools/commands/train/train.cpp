// SPDX-License-Identifier: Apache-2.0
// fp8 train: a model from a config or a checkpoint, a text, trainer::Trainer, and a folder that it leaves:
//
//   OUT/config.json, tokenizer files, model.safetensors    the trained model, there when training ended
//   OUT/log.jsonl, OUT/train.json                          a line per step; what the run was started with
//   OUT/measurements/                                      with fp8: the amaxes met, for fp8 quantize
//   OUT/checkpoints/step-00000200/                         the same model files, and trainer_state.{json,safetensors}
//   to go on from
//
// Of several processes that a launcher started each does its part of every batch; OUT is rank 0's alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/memory.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file_names.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/ops/common/arguments.h"
#include "fp8/runtime/trainer/csv_logger.h"
#include "fp8/runtime/trainer/early_stopping.h"
#include "fp8/runtime/trainer/memory_log.h"
#include "fp8/runtime/trainer/model_checkpoint.h"
#include "fp8/runtime/trainer/tensorboard_logger.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/table.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/profile.h"
#include "fp8/tools/commands/train/train_best.h"
#include "fp8/tools/commands/train/train_data.h"
#include "fp8/tools/commands/train/train_length.h"
#include "fp8/tools/commands/train/train_log.h"
#include "fp8/tools/commands/train/train_memory.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/commands/train/train_precision.h"
#include "fp8/tools/commands/train/train_ranks.h"
#include "fp8/tools/commands/train/train_settings.h"
#include "fp8/tools/commands/train/train_task.h"
#include "fp8/tools/commands/work/memory_budget.h"
#include "fp8/tools/models/base/config_reader.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

struct Start {
  std::shared_ptr<models::CausalLM> model;
  std::string config_text;
  fs::path tokenizer;
};

/// The model without its weights, if it can be trained here. file: the config.json that `config` was read from.
std::shared_ptr<models::CausalLM> fresh_model(const models::FamilyConfig& config, const fs::path& file,
                                              const TrainOptions& o, const Context& context) {
  if (!config.family.trainable) {
    std::string allowed;
    for (const auto& family : models::model_families())
      if (family.trainable) allowed += (allowed.empty() ? "" : ", ") + family.model_type;
    throw io::Error(file.string() + ": key 'model_type': found \"" + config.family.model_type +
                    "\", which cannot be trained, allowed: " + allowed);
  }
  auto free = static_cast<double>(available_memory());
  if (resolve_device(context).is_hpu()) free = std::min(free, static_cast<double>(runtime::memory_stats().Limit));
  auto model = config.make();
  refuse_oversized(*model, o, file.string(), free);
  return model;
}

/// The model before its first step, f32 on the device.
Start start_of(const TrainOptions& o, const Context& context) {
  const auto device = resolve_device(context);
  Start start;
  if (!o.model.empty()) {
    fresh_model(models::read_config(o.model), o.model / io::kConfigFile, o, context);  // refused before it is read
    auto loaded = models::load_model(o.model, {.dtype = at::kFloat, .device = device});
    const auto quantized = loaded.config_json.find("quantization_config");
    if (quantized != loaded.config_json.end() && !quantized->is_null())
      throw io::Error((o.model / io::kConfigFile).string() +
                      ": key 'quantization_config': the model is quantized, allowed: a high precision checkpoint");
    start = {loaded.model, io::read_json_edit(o.model / io::kConfigFile).text(), o.model};
  } else {
    const auto file = fs::is_directory(o.init) ? o.init / io::kConfigFile : o.init;
    start.config_text = io::read_json_edit(file).text();
    const auto json = io::parse_json(start.config_text, file.string());
    start.model = fresh_model(models::parse_config(json, file.string()), file, o, context);
    const double range = models::ConfigReader(json, file.string()).number("initializer_range", 0, 100, 0.02);
    models::initialize(*start.model, range, context.seed, device);
    start.tokenizer = file.parent_path();
  }
  if (!o.tokenizer.empty())
    start.tokenizer = fs::is_regular_file(o.tokenizer) ? o.tokenizer.parent_path() : o.tokenizer;
  if (start.tokenizer.empty()) start.tokenizer = ".";
  return start;
}

TextBatches batches_of(const fs::path& file, const TrainOptions& o, const Context& context, const Start& start,
                       std::int64_t batch, bool shuffle, std::int64_t multiple = 1) {
  DataOptions data;
  data.data = file;
  data.seq_len = o.seq_len;
  auto chunks = load_chunks_for(data, start.tokenizer, start.model->shape());
  if (chunks.count < multiple)
    throw io::Error(fmt::format("{}: found {} chunks of {} tokens, allowed with --drop-last: {} or more, a whole batch",
                                file.string(), chunks.count, o.seq_len, multiple));
  return TextBatches(std::move(chunks), batch, shuffle, context.seed, resolve_device(context), multiple);
}

/// A bar that knows where training starts.
class ProgressCallback : public trainer::TrainerCallback {
 public:
  ProgressCallback(const Context& context, std::int64_t steps) : context_(context), steps_(steps) {}
  void on_fit_start(trainer::Trainer&, std::int64_t step) override {
    first_ = step;
    if (step < steps_) progress_.emplace(context_, "train", steps_ - step);
  }
  void on_step_end(trainer::Trainer&, const trainer::StepReport& report) override {
    if (progress_) progress_->update(report.step - first_);
  }
  void on_fit_end(trainer::Trainer&) override { progress_.reset(); }

 private:
  const Context& context_;
  std::int64_t steps_, first_ = 0;
  std::optional<Progress> progress_;
};

/// Nothing in the folder but what a killed run may have left under a temporary name.
bool holds_nothing(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string()[0] != '.') return false;
  return true;
}

/// The run in OUT is the same but for its steps: train.json says the new ones, and what was made at the end of the old
/// ones goes.
void go_on(const TrainOptions& o, const Context& context, const io::Json& settings) {
  const auto file = o.out / kTrainSettingsFile;
  const auto written = io::read_json(file);
  const auto steps = check_resume(file, written, settings, o);
  TrainLog::refuse_if_locked(o.out / kTrainLogFile);
  if (!steps.warning.empty()) context.warn(steps.warning);
  if (steps.done < o.optimizer.steps) {
    std::error_code ignored;
    fs::remove(o.out / io::kWeightsFile, ignored);
    fs::remove_all(o.out / "measurements", ignored);
  }
  if (written != settings) io::write_json(file, settings);
}

/// Makes OUT, or finds the run in it that is to go on. Returns true for the latter.
bool open_out(const TrainOptions& o, const Context& context, const io::Json& settings) {
  const auto file = o.out / kTrainSettingsFile;
  std::error_code error;
  if (fs::exists(o.out, error) && !fs::is_directory(o.out, error))
    throw io::Error(o.out.string() + ": found a file, allowed: a folder");
  const bool empty = holds_nothing(o.out);
  const bool run = fs::exists(file, error);
  if (o.resume && run) {
    go_on(o, context, settings);
    return true;
  }
  if (!empty && !run)
    throw io::Error(o.out.string() + ": is not empty and holds no run of fp8 train, allowed: a new or empty folder");
  if (!empty && !o.overwrite)
    throw io::Error(o.out.string() + ": holds a run, allowed: --resume to go on with it, --overwrite to begin anew");
  if (!fs::create_directories(o.out, error) && error)
    throw io::Error(o.out.string() + ": can't be made: " + error.message());
  if (run) TrainLog::refuse_if_locked(o.out / kTrainLogFile);  // --overwrite is not meant for a run that is going on
  for (const char* name : {"checkpoints", "measurements", kBestFolder, kTensorBoardFolder})
    fs::remove_all(o.out / name);
  for (const char* name : {io::kWeightsFile, kTrainLogFile, kCsvFile}) fs::remove(o.out / name, error);
  io::write_json(file, settings);
  return false;
}

std::string weights_checksum(const models::CausalLM& model) {
  io::Checksum sum;
  for (const auto& p : model.parameters()) {
    const at::Tensor here = runtime::cpu_alias(p.detach()).contiguous();
    sum.update(here.const_data_ptr(), here.nbytes());
  }
  return io::checksum_text(sum.value());
}

trainer::TrainerOptions trainer_options(const TrainOptions& o, const TrainPrecision& precision,
                                        const TrainRanks& ranks) {
  trainer::TrainerOptions t;
  t.max_steps = o.optimizer.steps;
  t.accumulate_grad_batches = o.grad_accum;
  t.gradient_clip_val = o.clip;
  if (o.callbacks.clip_by_value) t.gradient_clip_algorithm = trainer::GradientClip::value;
  t.max_time = o.callbacks.max_time;
  t.val_every_n_steps = o.eval_every > 0 ? o.eval_every : o.optimizer.steps;
  t.throughput_warmup_steps = o.throughput_warmup;
  t.adjust_throughput = !o.whole_time;
  // torch begins at 65536 and leaves out steps until gradients fit, those of drawn weights being the largest.
  if (o.precision == "16-mixed") t.grad_scaler = trainer::GradScalerOptions{.init_scale = 1024};
  t.nonfinite = o.nonfinite;
  t.checkpoint_root = o.out / "checkpoints";
  t.save_every_n_steps = o.save_every;
  t.keep_checkpoints = o.keep_checkpoints;
  t.forward_context = precision.context();
  t.context_ended = precision.context_ended();
  t.should_stop = interrupted;
  t.group = ranks.group();
  t.strategy = ranks.strategy();
  return t;
}

/// Those of every rank: what ends training or writes a checkpoint does so on all of them.
std::vector<std::shared_ptr<trainer::TrainerCallback>> callbacks_of(const TrainOptions& o) {
  std::vector<std::shared_ptr<trainer::TrainerCallback>> all;
  if (o.callbacks.patience > 0)
    all.push_back(std::make_shared<trainer::EarlyStopping>(
        trainer::EarlyStoppingOptions{.monitor = "val_loss", .patience = o.callbacks.patience}));
  if (o.callbacks.save_best > 0) {
    trainer::ModelCheckpointOptions best;
    best.dirpath = o.out / kBestFolder;
    best.filename = "{step}-{val_loss:.4f}";
    best.monitor = "val_loss";
    best.save_top_k = o.callbacks.save_best;
    all.push_back(std::make_shared<trainer::ModelCheckpoint>(std::move(best)));
  }
  for (const auto& name : o.callbacks.loggers) {
    if (name == "csv")
      all.push_back(std::make_shared<trainer::CsvLogger>(o.out / kCsvFile));
    else
      all.push_back(std::make_shared<trainer::TensorBoardLogger>(o.out / kTensorBoardFolder));
  }
  return all;
}

void print(const TrainOptions& o, const Context& context, const trainer::FitResult& result, io::Json more) {
  const double speed = result.speed.value("train_tokens_per_second", 0.0);
  io::Json json = {{"steps", result.steps},
                   {"epochs", result.epochs},
                   {"tokens", result.tokens},
                   {"resumed_from", result.resumed_from},
                   {"skipped_steps", result.skipped_steps},
                   {"stop_reason", result.stop_reason.empty() ? io::Json(nullptr) : io::Json(result.stop_reason)},
                   {"loss", result.last_loss},
                   {"loss_last20", result.loss_last20},
                   {"eval_loss", result.val_loss ? io::Json(*result.val_loss) : io::Json(nullptr)},
                   {"precision", o.precision}};
  json.update(more);
  json.update(result.speed);
  json["tokens_per_second"] = speed;
  json["out"] = o.out.string();
  Table table({"train", ">" + o.out.filename().string()});
  table.row({"steps", grouped(result.steps)});
  table.row({"tokens", grouped(result.tokens)});
  if (json["ranks"] > 1) table.row({"ranks", json["ranks"].dump() + ", " + json["strategy"].get<std::string>()});
  table.row({"loss, last 20 steps", fmt::format("{:.5f}", result.loss_last20)});
  if (result.val_loss) table.row({"eval loss (nats per token)", fmt::format("{:.5f}", *result.val_loss)});
  if (!result.stop_reason.empty()) table.row({"ended by", result.stop_reason});
  if (result.skipped_steps > 0) table.row({"steps left out", grouped(result.skipped_steps)});
  table.row({"seconds", human_seconds(result.speed.value("train_runtime", 0.0))});
  table.row({"tokens per second", grouped(std::llround(speed))});
  const auto measured = json.find("measurements");
  if (measured != json.end() && measured->is_string()) table.row({"measurements", measured->get<std::string>()});
  context.result(json, table.text());
}

void train(const TrainOptions& asked, Context& context) {
  TrainOptions o = asked;
  const TrainRanks ranks(o.ranks, o.precision == "fp8", context);
  auto start = start_of(o, context);
  if (o.plan) {
    const auto plan = TrainPrecision::plan(o, context, start.model);
    if (ranks.first()) context.result(plan.json, plan.text);
    return;
  }
  auto data =
      batches_of(o.data, o, context, start, o.batch, /*shuffle=*/true, o.drop_last ? o.batch * ranks.size() : 1);
  count_steps(o, data.batches(), ranks.size());
  std::optional<TextBatches> eval;
  if (!o.eval.empty())
    eval = batches_of(o.eval, o, context, start, o.eval_batch > 0 ? o.eval_batch : o.batch, /*shuffle=*/false);
  TrainPrecision precision(o, context, start.model, ranks.amax_group());
  const auto config = io::parse_json(start.config_text, io::kConfigFile).dump();  // spaces decide nothing
  io::Json more = {
      {"chunks", data.chunks().count},
      {"data_fingerprint", fmt::format("{:016x}", data.fingerprint())},
      {"eval_fingerprint", eval ? io::Json(fmt::format("{:016x}", eval->fingerprint())) : io::Json(nullptr)},
      {"config_fingerprint", io::checksum_text(io::checksum(config))}};
  more.update(precision.settings());
  const auto settings = train_settings(o, context, more);
  ranks.check_same(settings, ranks.size() > 1 ? weights_checksum(*start.model) : "");
  const bool resume = ranks.on_first([&] { return open_out(o, context, settings); });

  LanguageModelTask task(start.model, o.optimizer,
                         {start.config_text, start.tokenizer, runtime::ops::dtype_of(o.save_dtype)},
                         precision.state_hooks());
  auto options = trainer_options(o, precision, ranks);
  options.resume = resume;
  options.profiler = profiler_of(o.profile, context);
  const bool on_device = resolve_device(context).is_hpu();
  auto callbacks = callbacks_of(o);
  if (ranks.first()) {
    const auto more_of_step = [&, more = precision.log_hook()](io::Json& entry) {
      if (more) more(entry);
      if (on_device && entry["step"].get<std::int64_t>() % o.logging_steps == 0) entry.update(trainer::memory_rows());
    };
    callbacks.push_back(std::make_shared<TrainLog>(o.out / kTrainLogFile, more_of_step));
    callbacks.push_back(std::make_shared<ProgressCallback>(context, o.optimizer.steps));
  }
  const auto best = best_of(callbacks);
  trainer::Trainer trainer(std::move(options), std::move(callbacks));
  const auto result = trainer.fit(task, data, eval ? &*eval : nullptr);
  if (result.stopped && result.steps < o.optimizer.steps) {
    context.warn(fmt::format("stopped after step {}: a checkpoint is in {}, --resume goes on", result.steps,
                             (o.out / "checkpoints").string()));
    throw Interrupted();
  }
  ranks.on_first([&] {
    task.save_files(o.out);
    if (o.callbacks.load_best) take_weights(best->best_model_path(), o.out);
    precision.write_measurements(o.out / "measurements");
    return true;
  });
  auto summary = precision.summary();
  summary["ranks"] = ranks.size();
  summary["strategy"] = ranks.strategy_name();
  if (ranks.first()) print(o, context, result, std::move(summary));
}

const Provided g_train(train_model, train);

}  // namespace
}  // namespace fp8::commands
