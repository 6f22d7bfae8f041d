// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/train/train_run.h"

namespace fp8::commands {
namespace {

/// A bar that knows where training starts; where stderr is no terminal a line for each evaluation, and else one for
/// each kLineSeconds.
class ProgressCallback : public trainer::TrainerCallback {
 public:
  ProgressCallback(const Context& context, std::int64_t steps) : context_(context), steps_(steps) {}
  void on_fit_start(trainer::Trainer& trainer, std::int64_t step) override {
    first_ = step;
    total_ = (steps_ >= 0 ? steps_ : trainer.estimated_stepping_batches()) - step;
    if (total_ > 0) progress_.emplace(context_, "train", total_);
  }
  void on_step_end(trainer::Trainer&, const trainer::StepReport& report) override {
    if (!progress_) return;
    if (report.val_loss) eval_loss_ = report.val_loss;
    const std::int64_t done = report.step - first_;
    if (context_.shows_progress()) return progress_->update(done, numbers_of(report));
    const double now = watch_.seconds();
    if (context_.json || (!report.val_loss && now < next_line_)) return;
    next_line_ = now + kLineSeconds;
    context_.say(fmt::format("train: step {} of {}, {}{}", report.step, first_ + total_, numbers_of(report),
                             Progress::time_left(done, total_, now)));
  }
  void on_fit_end(trainer::Trainer&) override { progress_.reset(); }

 private:
  static constexpr double kLineSeconds = 10;

  /// "loss 2.3456, lr 1.00e-03, 12,345 tokens/s, eval loss 2.2345"
  std::string numbers_of(const trainer::StepReport& report) const {
    return fmt::format("loss {:.4f}, lr {:.2e}, {} tokens/s{}", report.loss, report.lr,
                       grouped(std::llround(report.tokens_per_second)),
                       eval_loss_ ? fmt::format(", eval loss {:.4f}", *eval_loss_) : "");
  }

  const Context& context_;
  std::int64_t steps_, first_ = 0, total_ = 0;
  std::optional<Progress> progress_;
  std::optional<double> eval_loss_;  ///< the newest
  Stopwatch watch_;
  double next_line_ = kLineSeconds;
};

/// Steps are worth a checkpoint.
class KeepsSteps : public trainer::TrainerCallback {
 public:
  void on_fit_start(trainer::Trainer&, std::int64_t) override { keeps_.emplace(); }
  void on_fit_end(trainer::Trainer&) override { keeps_.reset(); }

 private:
  std::optional<KeepsWork> keeps_;
};

}  // namespace

trainer::PartContext part_context(const TrainOptions& o, const Context& context) {
  return {.root = o.out.empty() ? "." : o.out, .device = resolve_device(context), .seed = context.seed};
}

Callbacks callbacks_of(const TrainOptions& o, const Context& context) {
  Callbacks all = {std::make_shared<KeepsSteps>()};
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
  const auto parts = part_context(o, context);
  for (const auto& part : o.run.loggers) all.push_back(trainer::make_part<trainer::TrainerCallback>(part, parts));
  for (const auto& part : o.run.callbacks) all.push_back(trainer::make_part<trainer::TrainerCallback>(part, parts));
  return all;
}

void check_callbacks(const TrainOptions& o, const Context& context) {
  auto parts = part_context(o, context);
  parts.checks_only = true;
  for (const auto* list : {&o.run.loggers, &o.run.callbacks})
    for (const auto& part : *list) trainer::make_part<trainer::TrainerCallback>(part, parts);
}

void add_log(Callbacks& callbacks, const TrainOptions& o, const Context& context, const TrainPrecision& precision,
             std::int64_t steps) {
  const bool on_device = resolve_device(context).is_hpu();
  const auto every = o.logging_steps;
  const auto more_of_step = [on_device, every, more = precision.log_hook()](io::Json& entry) {
    if (more) more(entry);
    if (on_device && entry["step"].get<std::int64_t>() % every == 0) entry.update(trainer::memory_rows());
  };
  callbacks.push_back(std::make_shared<TrainLog>(o.out / kTrainLogFile, more_of_step));
  if (o.run.trainer.enable_progress_bar.value_or(true))
    callbacks.push_back(std::make_shared<ProgressCallback>(context, steps));
}

void end_early(const TrainOptions& o, const Context& context, const trainer::FitResult& result) {
  context.warn(fmt::format("stopped after step {}: a checkpoint is in {}, --resume goes on", result.steps,
                           (o.out / "checkpoints").string()));
  throw Interrupted();
}

trainer::TrainerOptions trainer_options(const TrainOptions& o, const TrainPrecision& precision,
                                        const TrainRanks& ranks) {
  trainer::TrainerOptions t;
  t.max_steps = o.optimizer.steps;
  t.accumulate_grad_batches = o.grad_accum;
  t.gradient_clip_val = o.clip;
  if (o.callbacks.clip_by_value) t.gradient_clip_algorithm = trainer::GradientClip::value;
  t.max_time = o.callbacks.max_time;
  // A model of one's own is evaluated after each epoch, or as val_check_interval says.
  if (!o.run.model) t.val_every_n_steps = o.optimizer.steps;
  t.throughput_warmup_steps = o.throughput_warmup;
  t.adjust_throughput = !o.whole_time;
  t.hpu_graphs = {o.hpu_graphs, o.hpu_graphs_inference, o.max_hpu_graphs};
  t.lazy = {o.lazy, o.pipelining};
  // torch begins at 65536 and leaves out steps until gradients fit, those of drawn weights being the largest.
  if (o.precision == "16-mixed") t.grad_scaler = trainer::GradScalerOptions{.init_scale = 1024};
  t.nonfinite = o.nonfinite;
  t.checkpoint_root = o.out / "checkpoints";
  t.save_every_n_steps = o.save_every;
  t.keep_checkpoints = o.keep_checkpoints;
  t.should_stop = interrupted;
  t.group = ranks.group();
  t.strategy = ranks.strategy();
  t = precision.around(std::move(t));
  apply(o.run.trainer, t);
  if (!o.run.model && o.eval_every > 0) t.val_every_n_steps = o.eval_every;  // options go before val_check_interval
  return t;
}

std::int64_t steps_of_epochs(const TrainOptions& o, std::int64_t batches, int ranks, double epochs) {
  trainer::TrainerOptions t;
  t.accumulate_grad_batches = o.grad_accum;
  apply(o.run.trainer, t);
  if (t.strategy.use_distributed_sampler) batches = (batches + ranks - 1) / ranks;
  return trainer::steps_of_epochs(t.accumulate_grad_batches, trainer::batches_of_epoch(t, batches), epochs);
}

std::shared_ptr<runtime::Profiler> profiler_of(const TrainOptions& o, const Context& context) {
  const auto& simple = o.run.trainer.simple_profiler;
  if (!simple) return profiler_of(o.profile, context);
  if (!o.profile.folder.empty())
    throw UsageError("--profile: found beside trainer.profiler simple, allowed: one of them");
  runtime::SimpleProfilerOptions options;
  options.dirpath = !simple->dirpath.empty() ? simple->dirpath : o.out.empty() ? "." : o.out.string();
  options.filename = simple->filename;
  options.extended = simple->extended;
  options.warn = [&context](const std::string& text) { context.warn(text); };
  if (context.quiet) options.log = [](const std::string&) {};
  return std::make_shared<runtime::SimpleProfiler>(std::move(options));
}

void apply(const TrainerKeys& k, trainer::TrainerOptions& t) {
  const auto set = [](const auto& from, auto& to) {
    if (from) to = *from;
  };
  set(k.limit_train_batches, t.limit_train_batches);
  set(k.limit_val_batches, t.limit_val_batches);
  set(k.limit_test_batches, t.limit_test_batches);
  set(k.limit_predict_batches, t.limit_predict_batches);
  set(k.overfit_batches, t.overfit_batches);
  set(k.fast_dev_run, t.fast_dev_run);
  set(k.check_val_every_n_epoch, t.check_val_every_n_epoch);
  set(k.num_sanity_val_steps, t.num_sanity_val_steps);
  set(k.log_every_n_steps, t.log_every_n_steps);
  set(k.detect_anomaly, t.detect_anomaly);
  set(k.use_distributed_sampler, t.strategy.use_distributed_sampler);
  if (k.val_check_interval) t.val_check_interval = *k.val_check_interval;
  if (k.val_check_interval || k.check_val_every_n_epoch) t.val_every_n_steps = 0;
  if (!k.accumulate_grad_batches.empty()) t.accumulate_grad_batches = k.accumulate_grad_batches;
  if (k.deterministic)
    t.deterministic = *k.deterministic == "warn"   ? trainer::Deterministic::warn
                      : *k.deterministic == "true" ? trainer::Deterministic::yes
                                                   : trainer::Deterministic::no;
  if (!k.enable_checkpointing.value_or(true)) t.checkpoint_root.clear();
}

namespace {

/// The line of a step.
io::Json log_entry(const trainer::StepReport& r) {
  io::Json entry = {{"step", r.step},           {"epoch", r.epoch},
                    {"loss", r.loss},           {"lr", r.lr},
                    {"grad_norm", r.grad_norm}, {"tokens", r.tokens},
                    {"seconds", r.seconds},     {"tokens_per_second", r.tokens_per_second}};
  const auto memory = runtime::memory_stats();
  if (memory.MaxInUse > 0) {
    entry["memory"] = {{"in_use", memory.InUse}, {"max", memory.MaxInUse}};
  } else {  // --device cpu: the system knows of the whole process only
    entry["memory"] = {{"resident_max", peak_resident_bytes()}};
  }
  if (r.val_loss) entry["eval_loss"] = *r.val_loss;
  if (r.loss_scale) entry["loss_scale"] = *r.loss_scale;
  if (r.skipped) entry["skipped"] = true;
  return entry;
}

/// {"memory": {"max": 1}} as {"memory/max": 1}.
io::Json flat(const io::Json& entry) {
  io::Json row = io::Json::object();
  const io::Json by_path = entry.flatten();
  for (const auto& [path, value] : by_path.items()) row[path.substr(1)] = value;
  return row;
}

namespace fs = std::filesystem;

void copy_whole(const fs::path& from, const fs::path& to) {
  std::uint64_t size = 0;
  const auto in = io::open_regular(from, &size);
  io::AtomicFile out(to, size);
  std::string chunk;
  for (std::uint64_t at = 0; at < size; at += chunk.size()) {
    chunk.resize(std::min(size - at, io::kChunkBytes));
    io::read_at(in.get(), from, at, chunk.data(), chunk.size());
    out.append(chunk);
  }
  out.commit();
}

}  // namespace

void TrainLog::refuse_if_locked(const std::filesystem::path& path) {
  const io::Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) != 0) io::fail(path, "another run is writing it");
}

TrainLog::TrainLog(std::filesystem::path path, std::function<void(io::Json&)> more)
    : file_(std::move(path)), more_(std::move(more)) {
  if (file_.writes() && flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0)
    io::fail(file_.path(), "another run is writing it");
}

void TrainLog::on_fit_start(trainer::Trainer&, std::int64_t step) {
  std::size_t keep = 0;
  std::int64_t last = 0;
  if (step > 0)
    for_each_step(file_.path(), [&](const io::Json& entry, std::size_t end) {
      if (entry["step"] != last + 1)
        io::fail<io::Error>("{}: step {} follows step {}", file_.path().string(), entry["step"].dump(), last);
      last = entry["step"];
      keep = end;
      return last < step;
    });
  if (last != step) io::fail(file_.path(), "ends at step {}, but the checkpoint is of step {}", last, step);
  file_.truncate(keep);
}

void TrainLog::on_step_end(trainer::Trainer& trainer, const trainer::StepReport& report) {
  auto entry = log_entry(report);
  if (more_) more_(entry);
  trainer::append_line(file_, entry);
  if (!trainer.loggers().empty()) trainer::log_to_all(trainer, flat(entry), report.step);
}

void TrainLog::on_save_checkpoint(trainer::Trainer&, std::int64_t) { file_.sync(); }

std::shared_ptr<const trainer::ModelCheckpoint> best_of(
    const std::vector<std::shared_ptr<trainer::TrainerCallback>>& callbacks) {
  for (const auto& callback : callbacks)
    if (auto best = std::dynamic_pointer_cast<trainer::ModelCheckpoint>(callback)) return best;
  return nullptr;
}

void take_weights(const fs::path& checkpoint, const fs::path& out) {
  if (checkpoint.empty()) return;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")))
      copy_whole(io::source_file(checkpoint, name), out / name);
  }
}

}  // namespace fp8::commands
