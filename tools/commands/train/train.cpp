// SPDX-License-Identifier: Apache-2.0
// fp8 train: a model from a config or a checkpoint, a text, trainer::Trainer, and a folder that it leaves:
//
//   OUT/config.json, tokenizer files, model.safetensors    the trained model, there when training ended
//   OUT/log.jsonl, OUT/train.json                          a line per step; what the run was started with
//   OUT/measurements/                                      with fp8: the amaxes of the run, for fp8 quantize
//   OUT/checkpoints/step-00000200/                         the same model files, and trainer_state.{json,safetensors}
//   to go on from
//   OUT/predictions.safetensors                            of the stage predict: the tensors of each batch
//
// A model and data of one's own, made known by a library that --load loads (runtime/trainer/parts/part_registry.h),
// write beside log.jsonl, train.json and checkpoints what the model writes.
//
// Of several processes that a launcher started each does its part of every batch; OUT is rank 0's alone.
#include <fmt/format.h>

#include "fp8/runtime/graph/graph_counter.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/train/train_run.h"
#include "fp8/transformer_engine/modules/fp8_module.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
constexpr char kPredictionsFile[] = "predictions.safetensors";

/// A source whose batches come to the network's device.
class OnDevice : public trainer::BatchSource {
 public:
  OnDevice(std::unique_ptr<trainer::BatchSource> source, c10::Device device, bool non_blocking)
      : source_(std::move(source)), device_(device), non_blocking_(non_blocking && device.is_hpu()) {}
  trainer::BatchSource& source() const { return *source_; }
  std::int64_t batches() const override { return source_->batches(); }
  void seek(std::int64_t epoch, std::int64_t batch) override { source_->seek(epoch, batch); }
  std::optional<trainer::Batch> next() override { return moved(source_->next()); }
  std::optional<trainer::Batch> deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) override {
    return moved(source_->deal(epoch, batch, rank, ranks));
  }

 private:
  std::optional<trainer::Batch> moved(std::optional<trainer::Batch> batch) const {
    if (batch)
      for (auto& tensor : batch->tensors) {
        if (non_blocking_ && tensor.is_cpu()) tensor = tensor.pin_memory();
        tensor = tensor.to(device_, non_blocking_);
      }
    return batch;
  }
  std::unique_ptr<trainer::BatchSource> source_;
  c10::Device device_;
  bool non_blocking_;
};

/// A model's own state and the precision's, and the optimizer of the run file.
class PreparedModule : public trainer::ModuleAdapter {
 public:
  PreparedModule(trainer::TrainingModule& module, StateHooks precision, std::function<trainer::Optimizers()> optimizers)
      : ModuleAdapter(module), precision_(std::move(precision)), optimizers_(std::move(optimizers)) {}

  trainer::Optimizers configure_optimizers() override { return optimizers_(); }
  /// {"module", "precision"}, each with its tensors below its name.
  trainer::TrainingState extra_state() override {
    trainer::TrainingState all;
    add(all, "module", ModuleAdapter::extra_state());
    if (precision_.save) add(all, "precision", precision_.save());
    return all;
  }
  /// Of a checkpoint that another precision may have written, or a language model's training: the precision's alone.
  void load_state(const trainer::TrainingState& all) {
    if (all.json.is_object() && all.json.contains("module")) {
      ModuleAdapter::load_extra_state(part(all, "module"));
      if (precision_.load && all.json.contains("precision")) precision_.load(part(all, "precision"));
    } else if (precision_.load && !all.json.empty()) {
      precision_.load(all);
    }
  }
  void load_extra_state(const trainer::TrainingState& all) override {
    ModuleAdapter::load_extra_state(part(all, "module"));
    if (precision_.load) precision_.load(part(all, "precision"));
  }

 private:
  static void add(trainer::TrainingState& all, const std::string& name, trainer::TrainingState state) {
    all.json[name] = std::move(state.json);
    for (auto& [key, tensor] : state.tensors) all.tensors[name + "." + key] = std::move(tensor);
  }
  static trainer::TrainingState part(const trainer::TrainingState& all, const std::string& name) {
    return {all.json.at(name), trainer::tensors_below(all.tensors, name + ".")};
  }
  StateHooks precision_;
  std::function<trainer::Optimizers()> optimizers_;
};

/// The module that runs, a language model or one of a library.
struct Subject {
  std::shared_ptr<trainer::TrainingModule> module;
  std::shared_ptr<torch::nn::Module> network;
  std::shared_ptr<trainer::DataModule> data;
};

std::shared_ptr<torch::nn::Module> network_of(const std::shared_ptr<trainer::TrainingModule>& module) {
  return {module, &module->network()};
}

/// A model that a run file names, on the device.
Subject own_subject(const TrainOptions& o, const Context& context) {
  const auto parts = part_context(o, context);
  if (!o.run.data)
    io::fail<io::Error>("{}: found a model of its own, but no data: {class_path, init_args}", o.run.model->place);
  Subject subject;
  subject.module = trainer::make_part<trainer::TrainingModule>(*o.run.model, parts);
  subject.network = network_of(subject.module);
  subject.network->to(parts.device);
  subject.data = trainer::make_part<trainer::DataModule>(*o.run.data, parts);
  return subject;
}

/// The text of one stage, given out once.
class StageText : public trainer::DataModule {
 public:
  explicit StageText(TextBatches batches) : batches_(std::make_unique<TextBatches>(std::move(batches))) {}
  std::unique_ptr<trainer::BatchSource> val_dataloader() override { return own(); }
  std::unique_ptr<trainer::BatchSource> test_dataloader() override { return own(); }
  std::unique_ptr<trainer::BatchSource> predict_dataloader() override { return own(); }

 private:
  std::unique_ptr<trainer::BatchSource> own() { return std::move(batches_); }
  std::unique_ptr<TextBatches> batches_;
};

/// A language model for a stage that trains nothing.
Subject language_subject(const TrainOptions& o, const Context& context) {
  auto start = start_of(o, context);
  const fs::path& text = o.run.stage == Stage::validate ? o.eval
                         : o.run.stage == Stage::test   ? o.run.test_data
                                                        : o.run.predict_data;
  if (text.empty())
    throw UsageError(o.run.stage == Stage::validate ? "--eval (data.init_args.val) is required"
                     : o.run.stage == Stage::test   ? "data.init_args.test is required"
                                                    : "data.init_args.predict is required");
  Subject subject;
  subject.data = std::make_shared<StageText>(evaluation_batches(text, o, context, start));
  subject.module = language_model_task(start, o);
  subject.network = start.model;
  return subject;
}

std::unique_ptr<OnDevice> source_of(trainer::DataModule& data,
                                    std::unique_ptr<trainer::BatchSource> (trainer::DataModule::*loader)(),
                                    c10::Device device, const TrainOptions& o) {
  auto source = (data.*loader)();
  return source == nullptr ? nullptr : std::make_unique<OnDevice>(std::move(source), device, o.non_blocking);
}

std::unique_ptr<OnDevice> needed(std::unique_ptr<OnDevice> source, const TrainOptions& o, const char* loader) {
  if (source == nullptr)
    io::fail<io::Error>("{}the data has no {}", o.run.data ? o.run.data->place + ": " : std::string(), loader);
  return source;
}

/// Weights, buffers and the precision's state of a checkpoint's folder.
void load_weights(PreparedModule& module, const fs::path& folder) {
  const auto state = trainer::HPUCheckpointIO().load_checkpoint(folder);
  try {
    trainer::load_network(module.network(), state);
    module.load_state(trainer::extra_of(state));
  } catch (const io::Json::exception& error) {
    io::fail<io::Error>("{}: {}", folder.string(), error.what());
  } catch (const io::Error& error) {
    io::fail<io::Error>("{}: {}", folder.string(), io::raw_message(error));
  }
}

/// The folder that ckpt_path means.
fs::path checkpoint_of(const TrainOptions& o) {
  if (o.run.ckpt_path != "last") return o.run.ckpt_path;
  const auto root = o.out / "checkpoints";
  const auto steps = trainer::checkpoint_steps(root);
  if (steps.empty()) io::fail<io::Error>("ckpt_path: found \"last\", but no checkpoint is in {}", root.string());
  return trainer::checkpoint_folder(root, steps.back());
}

/// Returns the tree without the keys that a resumed run may change (its length, the files it keeps, its loggers and
/// profiler), and without those that are compared by themselves, from whatever source.
io::Json compared(io::Json tree) {
  if (!tree.is_object()) return tree;
  for (const char* key : {"ckpt_path", "seed_everything"}) tree.erase(key);
  const auto without = [&tree](const char* section, std::initializer_list<const char*> keys) {
    const auto found = tree.find(section);
    if (found == tree.end() || !found->is_object()) return;
    for (const char* key : keys) found->erase(key);
    if (found->empty()) tree.erase(section);
  };
  without("trainer", {"max_steps", "max_epochs", "max_time", "default_root_dir", "enable_progress_bar", "profiler",
                      "logger", "enable_model_summary", "log_every_n_steps", "devices", "num_nodes", "precision",
                      "accelerator", "use_hpu_graphs_for_training", "use_hpu_graphs_for_inference", "use_lazy_mode",
                      "pipelining_fwd_bwd", "non_blocking_data_copy"});
  without("fp8",
          {"precision", "recipe", "threads", "load", "save_every", "keep_checkpoints", "stats_every", "logging_steps",
           "throughput_warmup", "whole_time", "count_graphs", "logger", "profile", "profile_schedule", "rank_timeout"});
  without("fp8", {"hpu_graphs", "hpu_graphs_inference", "max_hpu_graphs", "lazy", "pipelining", "non_blocking"});
  return tree;
}

bool open_run(const TrainOptions& o, const Context& context) {
  const io::Json settings = {{"steps", o.run.trainer.max_steps.value_or(-1)},
                             {"precision", o.precision},
                             {"recipe", o.recipe},
                             {"device", context.device},
                             {"seed", context.seed},
                             {"run", o.run.tree}};
  return open_folder(o, settings, [&](const fs::path& file, const io::Json& written) {
    for (const char* key : {"precision", "recipe", "device", "seed", "run"}) {
      const auto found = written.is_object() ? written.find(key) : written.end();
      const bool same = found != written.end() && compared(*found) == compared(settings[key]);
      if (!same)
        io::fail<io::Error>("{}: key '{}': the run was started with {}, --resume found {}, allowed: the same",
                            file.string(), key, found == written.end() ? "none" : io::printable(found->dump()),
                            io::printable(settings[key].dump()));
    }
    return true;
  });
}

trainer::TrainerOptions options_of(const TrainOptions& o, const TrainPrecision& precision, const TrainRanks& ranks) {
  auto t = trainer_options(o, precision, ranks);
  t.max_steps = o.run.trainer.max_steps.value_or(-1);
  t.max_epochs = o.run.trainer.max_epochs.value_or(-1);
  const bool endless = t.max_steps < 0 && t.max_epochs < 0 && t.max_time <= 0;
  if (endless && o.run.trainer.max_epochs)
    throw io::Error("trainer.max_epochs: found -1, which has no end, allowed: beside max_steps or max_time");
  if (endless) t.max_epochs = 1000;  // as Lightning has it
  return t;
}

/// What --count-graphs says, without it nothing.
void add_graphs(const std::optional<runtime::GraphCounter>& counter, io::Json& json, Table& table) {
  if (!counter.has_value()) return;
  constexpr std::size_t kMostLines = 10;
  const auto counts = counter->counts();
  io::Json later = io::Json::array(), reads = io::Json::array();
  table.row({"graphs that Gaudi compiles", grouped(counts.compiled)});
  for (const auto& graph : counts.fresh) {
    if (graph.step == 0) continue;  // the first step compiles what all steps need
    later.push_back({{"step", graph.step + 1}, {"place", graph.place}, {"op", graph.op}, {"operands", graph.operands}});
    if (later.size() <= kMostLines) table.row({"  after the first step", graph.line()});
  }
  for (const auto& [read, times] : counts.host_reads)
    reads.push_back({{"place", read.first}, {"op", read.second}, {"times", times}});
  for (const auto& line : counts.host_read_lines()) table.row({"  read by the host", line});
  json["graphs"] = {{"compiled", counts.compiled},
                    {"reused", counts.reused},
                    {"steps", counts.steps},
                    {"after_first_step", std::move(later)},
                    {"host_reads", std::move(reads)}};
}

/// What --hpu-graphs did, without it nothing. result: a FitResult or an EvaluationResult.
template <class Result>
void add_replays(const Result& result, const TrainOptions& o, const Context& context, io::Json& json, Table& table) {
  if (!o.hpu_graphs && !o.hpu_graphs_inference) return;
  for (const auto& reason : result.graph_refusals) context.warn("--hpu-graphs: steps run as they are: " + reason);
  const auto& [captured, replayed, eager] = result.graphs;
  table.row({"steps captured", grouped(captured)});
  table.row({"steps replayed", grouped(replayed)});
  json["hpu_graphs"] = {
      {"captured", captured}, {"replayed", replayed}, {"as_they_are", eager}, {"reasons", result.graph_refusals}};
}

void print_metrics(const Context& context, const TrainOptions& o, const char* stage,
                   const std::map<std::string, double>& metrics, const io::Json& speed, io::Json json,
                   const std::function<void(io::Json&, Table&)>& more = {}) {
  Table table({stage, ">value"});
  json["metrics"] = io::Json::object();
  for (const auto& [name, value] : metrics) {
    json["metrics"][name] = value;
    table.row({name, fmt::format("{:.6g}", value)});
  }
  json["precision"] = o.precision;
  json.update(speed);
  if (more) more(json, table);
  context.result(json, table.text());
}

/// Ranks that share out what `sources` have, by their names in messages, are about to run the same.
void check_same(const TrainOptions& o, const TrainRanks& ranks, const TrainPrecision& precision, PreparedModule& module,
                std::initializer_list<std::pair<const char*, const OnDevice*>> sources) {
  if (ranks.size() == 1) return;
  io::Json facts = {{"run", compared(o.run.tree)}, {"precision", o.precision}};
  facts.update(precision.settings());
  if (!o.run.model && facts["run"].is_object())  // a language model and its texts, wherever they lie
    for (const char* places : {"model", "data"}) facts["run"].erase(places);
  if (o.run.trainer.use_distributed_sampler.value_or(true))
    for (const auto& [name, source] : sources)
      if (source != nullptr) facts[name] = facts_of(source->source());
  ranks.check_same(std::move(facts), weights_checksum(module.network()));
}

void fit(const TrainOptions& o, Context& context, const TrainRanks& ranks, TrainPrecision& precision,
         PreparedModule& module, trainer::DataModule& data, c10::Device device) {
  if (o.out.empty()) throw UsageError("trainer.default_root_dir (--out) is required: where the run is written");
  auto train = needed(source_of(data, &trainer::DataModule::train_dataloader, device, o), o, "train_dataloader");
  auto val = source_of(data, &trainer::DataModule::val_dataloader, device, o);
  check_same(o, ranks, precision, module, {{"training data", train.get()}, {"validation data", val.get()}});
  const bool trial = o.run.trainer.fast_dev_run.value_or(0) > 0;  // leaves nothing behind
  const bool resume = !trial && ranks.on_first([&] { return open_run(o, context); });
  auto options = options_of(o, precision, ranks);
  options.resume = resume;
  options.profiler = profiler_of(o, context);
  auto callbacks = trial ? Callbacks() : callbacks_of(o, context);
  if (ranks.first() && !trial) add_log(callbacks, o, context, precision, -1);
  std::optional<runtime::GraphCounter> counter;
  if (o.count_graphs) counter.emplace();
  trainer::Trainer trainer(std::move(options), std::move(callbacks));
  const auto result = trainer.fit(module, *train, val.get());
  if (result.stopped && !trial) end_early(o, context, result);
  if (!trial)
    ranks.on_first([&] {
      const KeepsWork keeps;
      module.save_files(o.out);
      precision.write_measurements(o.out / "measurements");
      return true;
    });
  if (!ranks.first()) return;
  auto metrics = trainer.callback_metrics();
  io::Json json = {{"stage", "fit"},
                   {"steps", result.steps},
                   {"epochs", result.epochs},
                   {"resumed_from", result.resumed_from},
                   {"skipped_steps", result.skipped_steps},
                   {"stop_reason", result.stop_reason.empty() ? io::Json(nullptr) : io::Json(result.stop_reason)},
                   {"ranks", ranks.size()},
                   {"ranks_said_by", ranks.size() > 1 ? io::Json(ranks.said_by()) : io::Json()},
                   {"out", o.out.string()}};
  json.update(precision.summary());
  print_metrics(context, o, "fit", metrics, result.speed, std::move(json), [&](io::Json& to, Table& table) {
    add_replays(result, o, context, to, table);
    add_graphs(counter, to, table);
  });
}

void evaluate(const TrainOptions& o, Context& context, const TrainRanks& ranks, TrainPrecision& precision,
              PreparedModule& module, trainer::DataModule& data, c10::Device device) {
  auto options = options_of(o, precision, ranks);
  options.checkpoint_root.clear();
  options.profiler = profiler_of(o, context);
  if (o.run.stage == Stage::predict) {
    if (o.out.empty()) throw UsageError("trainer.default_root_dir (--out) is required: where predictions are written");
    auto source = needed(source_of(data, &trainer::DataModule::predict_dataloader, device, o), o, "predict_dataloader");
    check_same(o, ranks, precision, module, {{"prediction data", source.get()}});
    auto callbacks = callbacks_of(o, context);
    callbacks.push_back(std::make_shared<trainer::PredictionWriter>(o.out / kPredictionsFile));
    const auto result = trainer::Trainer(std::move(options), std::move(callbacks)).predict(module, *source, false);
    if (result.stopped) throw Interrupted();
    if (!ranks.first()) return;
    return print_metrics(
        context, o, "predict",
        {{"batches", static_cast<double>(result.batches)}, {"samples", static_cast<double>(result.samples)}},
        result.speed, {{"stage", "predict"}, {"file", (o.out / kPredictionsFile).string()}});
  }
  const bool test = o.run.stage == Stage::test;
  auto source = test ? needed(source_of(data, &trainer::DataModule::test_dataloader, device, o), o, "test_dataloader")
                     : needed(source_of(data, &trainer::DataModule::val_dataloader, device, o), o, "val_dataloader");
  check_same(o, ranks, precision, module, {{test ? "test data" : "validation data", source.get()}});
  trainer::Trainer trainer(std::move(options), callbacks_of(o, context));
  const auto result = test ? trainer.test(module, *source) : trainer.validate(module, *source);
  if (result.stopped) throw Interrupted();
  if (ranks.first())
    print_metrics(context, o, test ? "test" : "validate", result.metrics, result.speed,
                  {{"stage", test ? "test" : "validate"}, {"loss", result.loss}},
                  [&](io::Json& to, Table& table) { add_replays(result, o, context, to, table); });
}

/// The CPU's work is neither captured nor queued, and needs no copies: who asks for that would wait for a speed that
/// does not come.
void check_graphs(const TrainOptions& o, const Context& context) {
  if (!resolve_device(context).is_cpu()) return;
  for (const auto& [given, option] :
       {std::pair(o.hpu_graphs, "--hpu-graphs"), std::pair(o.hpu_graphs_inference, "--hpu-graphs-inference"),
        std::pair(o.lazy, "--lazy"), std::pair(o.non_blocking, "--non-blocking")})
    if (given) throw UsageError(std::string(option) + ": found with --device cpu, allowed: with --device hpu");
}

/// A model of one's own, or any model for a stage that trains nothing.
void run_module(const TrainOptions& o, Context& context) {
  check_callbacks(o, context);
  check_graphs(o, context);
  const TrainRanks ranks(o.ranks, o.precision == "fp8", context);
  const auto device = resolve_device(context);
  const auto subject = o.run.model ? own_subject(o, context) : language_subject(o, context);
  ranks.on_first([&] {
    subject.data->prepare_data();
    return true;
  });
  subject.data->setup();
  if (o.plan) {
    const auto plan = TrainPrecision::plan(o, context, subject.network);
    if (ranks.first()) context.result(plan.json, plan.text);
    return;
  }
  TrainPrecision precision(o, context, subject.network, ranks.amax_group());
  PreparedModule module(*subject.module, precision.state_hooks(), [&] {
    auto own = optimizers_of(*subject.network, o.run.optimizer, o.run.lr_scheduler, part_context(o, context));
    return own ? std::move(*own) : subject.module->configure_optimizers();
  });
  if (!o.run.ckpt_path.empty()) load_weights(module, checkpoint_of(o));
  if (o.run.stage == Stage::fit) return fit(o, context, ranks, precision, module, *subject.data, device);
  evaluate(o, context, ranks, precision, module, *subject.data, device);
}

/// Makes OUT, or finds the run in it that is to go on: the same but for its steps. Returns true for the latter.
bool open_out(const TrainOptions& o, const Context& context, const io::Json& settings) {
  return open_folder(o, settings, [&](const fs::path& file, const io::Json& written) {
    const auto steps = check_resume(file, written, settings, o);
    if (!steps.warning.empty()) context.warn(steps.warning);
    return steps.done < o.optimizer.steps;
  });
}

void checkpoint_layers(models::CausalLM& model) {
  model.set_layer_runner([](const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& h) {
    return te::checkpoint(layer, h, {.preserve_rng_state = false});  // no layer draws random numbers
  });
}

/// Of a step the products of the forward, and two more for gradients of inputs and weights; with layers that are run
/// again one more. Memory is that of weights, gradients and two moments in f32, and of the logits: what layers keep for
/// the gradients is not known before.
void say_forecast_of(const TrainOptions& o, const models::CausalLM& model, int ranks, const Context& context) {
  std::int64_t parameters = 0;
  for (const auto& p : model.parameters()) parameters += p.numel();
  const std::int64_t rows = o.batch * o.seq_len, tokens = o.optimizer.steps * o.grad_accum * rows;
  auto work = forward_work("train", model, tokens, o.seq_len, 16 * parameters + 8 * rows * model.shape().outputs());
  work.operations *= o.activation_checkpointing ? 4 : 3;
  if (ranks > 1) work.command += ", each rank";
  say_forecast(work, o.precision == "32-true" ? at::kFloat : at::kBFloat16, context);
}

void print(const TrainOptions& o, const Context& context, const trainer::FitResult& result, io::Json more,
           const std::optional<runtime::GraphCounter>& counter) {
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
  add_replays(result, o, context, json, table);
  add_graphs(counter, json, table);
  context.result(json, table.text());
}

void train(const TrainOptions& asked, Context& context) {
  if (asked.run.model || asked.run.stage != Stage::fit) return run_module(asked, context);
  TrainOptions o = asked;
  check_callbacks(o, context);
  check_graphs(o, context);
  const TrainRanks ranks(o.ranks, o.precision == "fp8", context);
  auto start = start_of(o, context);
  if (o.plan) {
    const auto plan = TrainPrecision::plan(o, context, start.model);
    if (ranks.first()) context.result(plan.json, plan.text);
    return;
  }
  auto data = training_batches(o, context, start, ranks.size());
  count_steps(o, [&](double epochs) { return steps_of_epochs(o, data.batches(), ranks.size(), epochs); });
  std::optional<TextBatches> eval;
  if (!o.eval.empty()) eval = evaluation_batches(o.eval, o, context, start);
  TrainPrecision precision(o, context, start.model, ranks.amax_group());
  if (o.activation_checkpointing) checkpoint_layers(*start.model);
  const auto config = io::parse_python_json(start.config_text, io::kConfigFile).dump();  // spaces decide nothing
  io::Json more = {
      {"chunks", data.chunks().count},
      {"data_fingerprint", fmt::format("{:016x}", data.fingerprint())},
      {"eval_fingerprint", eval ? io::Json(fmt::format("{:016x}", eval->fingerprint())) : io::Json(nullptr)},
      {"config_fingerprint", io::checksum_text(io::checksum(config))}};
  more.update(precision.settings());
  const auto settings = train_settings(o, context, more);
  ranks.check_same(settings, ranks.size() > 1 ? weights_checksum(*start.model) : "");
  const bool trial = o.run.trainer.fast_dev_run.value_or(0) > 0;  // leaves nothing behind
  const bool resume = !trial && ranks.on_first([&] { return open_out(o, context, settings); });

  const auto task = language_model_task(start, o, precision.state_hooks());
  auto options = trainer_options(o, precision, ranks);
  options.resume = resume;
  options.profiler = profiler_of(o, context);
  auto callbacks = trial ? Callbacks() : callbacks_of(o, context);
  if (ranks.first() && !trial) add_log(callbacks, o, context, precision, o.optimizer.steps);
  if (ranks.first() && !resume) say_forecast_of(o, *start.model, ranks.size(), context);
  const auto best = best_of(callbacks);
  std::optional<runtime::GraphCounter> counter;
  if (o.count_graphs) counter.emplace();
  trainer::Trainer trainer(std::move(options), std::move(callbacks));
  const auto result = trainer.fit(*task, data, eval ? &*eval : nullptr);
  if (result.stopped && (result.unvalidated || result.steps < o.optimizer.steps) && !trial)
    end_early(o, context, result);
  ranks.on_first([&] {
    if (trial) return true;
    const KeepsWork keeps;
    task->save_files(o.out);
    if (o.callbacks.load_best) take_weights(best->best_model_path(), o.out);
    precision.write_measurements(o.out / "measurements");
    return true;
  });
  auto summary = precision.summary();
  summary["ranks"] = ranks.size();
  summary["ranks_said_by"] = ranks.size() > 1 ? io::Json(ranks.said_by()) : io::Json();
  summary["strategy"] = ranks.strategy_name();
  if (ranks.first()) print(o, context, result, std::move(summary), counter);
}

const Provided g_train(train_model, train);

}  // namespace

}  // namespace fp8::commands
