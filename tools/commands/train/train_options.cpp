// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_options.h"

#include <fmt/format.h>

#include "fp8/configs/recipe_config.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using kernels::FloatType;

constexpr std::int64_t kMany = std::int64_t{1} << 40;

io::Json full_path(const fs::path& path) { return path.empty() ? "" : fs::weakly_canonical(path).string(); }

io::Json full_paths(const text::DataFiles& files) {
  if (files.size() == 1) return full_path(files[0]);
  io::Json all = io::Json::array();
  for (const auto& file : files) all.push_back(full_path(file));
  return all;
}

TrainField flag(bool& v) {
  return {[&v](Options& o, const auto& name, const auto& help) { o.flag(name, v, help); }, [&v] { return v; }};
}
TrainField path(fs::path& v, io::Reach reach = io::Reach::read) {
  return {[&v, reach](Options& o, const auto& name, const auto& help) { o.path(name, v, reach, help); },
          [&v] { return full_path(v); }};
}
/// reach: of a text that may be a path.
TrainField text(std::string& v, io::Reach reach = io::Reach::none) {
  const auto declare = [&v, reach](Options& o, const auto& name, const auto& help) {
    o.text(name, v, help);
    o.reach(name, reach);
  };
  return {declare, [&v] { return v; }, /*is_text=*/true};
}
TrainField model(fs::path& v) {
  return {[&v](Options& o, const auto&, const auto& help) { o.model(v, help, Options::Need::optional); },
          [&v] { return full_path(v); }};
}
TrainField list(std::vector<std::string>& v, io::Reach reach = io::Reach::none) {
  const auto declare = [&v, reach](Options& o, const auto& name, const auto& help) {
    o.list(name, v, help);
    o.reach(name, reach);
  };
  return {declare, [&v] { return v; }, /*is_text=*/true};
}
/// default_text: in the help, in place of the default.
TrainField integer(std::int64_t& v, std::int64_t low, std::int64_t high = kMany, const char* default_text = "") {
  const auto declare = [&v, low, high, default_text](Options& o, const auto& name, const auto& help) {
    o.integer(name, v, low, high, help, default_text);
  };
  return {declare, [&v] { return v; }};
}
TrainField number(double& v, double low, double high) {
  return {[&v, low, high](Options& o, const auto& name, const auto& help) { o.number(name, v, low, high, help); },
          [&v] { return v; }};
}
TrainField word(std::string& v, const std::vector<std::string>& words) {
  const auto declare = [&v, words](Options& o, const auto& name, const auto& help) {
    o.choice(name, words, [&v, words](std::size_t i) { v = words[i]; }, help);
  };
  return {declare, [&v] { return v; }};
}
/// true is the second word.
TrainField either(bool& v, const char* off, const char* on) {
  const auto declare = [&v, off, on](Options& o, const auto& name, const auto& help) {
    o.choice(name, {off, on}, [&v](std::size_t i) { v = i == 1; }, help);
  };
  return {declare, [&v, off, on] { return v ? on : off; }};
}
template <NamedEnum E>
TrainField choice(E& v, const EnumChoice<E>& among = choice_of<E>()) {
  const auto declare = [&v, among](Options& o, const auto& name, const auto& help) {
    o.choice<E>(name, v, help, among);
  };
  return {declare, [&v] { return name_of(v); }};
}
template <NamedEnum E>
TrainField choice(std::optional<E>& v, const EnumChoice<E>& among) {
  const auto declare = [&v, among](Options& o, const auto& name, const auto& help) {
    o.choice<E>(name, v, help, among);
  };
  return {declare, [&v] { return v ? io::Json(name_of(*v)) : io::Json(nullptr); }};
}
/// Its value is what comes of it.
TrainField last_batch(TrainOptions& o) {
  TrainField field = choice(o.last_batch, choice_of<trainer::LastBatch>());
  field.value = [&o] { return name_of(last_batch_of(o)); };
  return field;
}
/// Options that other commands have too.
TrainField shared(std::function<void(Options&)> declare) {
  return {[declare = std::move(declare)](Options& o, const auto&, const auto&) { declare(o); }, [] { return nullptr; }};
}

std::string recipe_help() {
  const std::string habana = kDefaultRecipe;
  std::vector<std::string> names = configs::recipe_preset_names();
  std::ranges::replace(names, habana, habana + " (E5M2, the default)");
  return "Of --precision fp8: " + io::joined(names) + " or a JSON file";
}

std::string strategy_help() {
  std::string text = "How ranks come to the same gradients:";
  for (const auto& row : enum_names<trainer::StrategyKind>)
    text += std::string(row.value == trainer::StrategyKind::automatic ? " " : "; ") + row.name + ", " + row.what;
  return text;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& row : enum_names<trainer::StrategyKind>) names.emplace_back(row.name);
  names.insert(names.end(), std::begin(trainer::kPythonStrategies), std::end(trainer::kPythonStrategies));
  return names;
}

using Rows = std::vector<TrainRow>;
constexpr TrainColumns also;
constexpr TrainColumns lm = also.of_language_models();

Rows model_rows(TrainOptions& o) {
  const auto data = [&o](Options& options, const std::string& flag, const std::string& help) {
    add_data_option(options, flag, o.data, help, Options::Need::optional);
  };
  return {
      // Before MODEL, as arguments are told apart by their places.
      {"stage", shared([&o](Options& options) {
         options.choice<Stage>("STAGE", o.run.stage, "What a run file is started for (default fit)");
       })},
      {"init", path(o.init, io::Reach::beside),
       "config.json (or its folder): train from drawn weights, steered by --seed",
       lm.with_key("model.init").recorded("init")},
      {"model", model(o.model), "Checkpoint folder: go on from these weights",
       lm.with_key("model.model").recorded("model")},
      {"tokenizer", path(o.tokenizer), "Folder with a tokenizer (default: beside the config or checkpoint)",
       lm.with_key("model.tokenizer")},
      {"data",
       {data, [&o] { return full_paths(o.data); }},
       "Text to train on: .txt, .md, .jsonl, .json (text, messages, prompt and completion) or .safetensors (input_ids)",
       lm.with_key("data.train").recorded("data")},
      {"out", path(o.out, io::Reach::folder), "Folder for the model, log.jsonl and checkpoints",
       also.with_key("trainer.default_root_dir")},
      {"steps", integer(o.optimizer.steps, 1), "Optimizer steps", also.with_key("trainer.max_steps").recorded("steps")},
      {"epochs", number(o.epochs, 0, 1e6), "Passes over the data, instead of --steps; 0: --steps",
       also.with_key("trainer.max_epochs").replacing("steps")},
      {"batch", integer(o.batch, 1, 65536), "Chunks per forward of each rank",
       lm.with_key("data.batch_size").recorded("batch")},
      {"seq_len", integer(o.seq_len, 2, 1 << 20), "Tokens per chunk", lm.with_key("data.seq_len").recorded("seq_len")},
  };
}

Rows optimizer_rows(TrainOptions& o) {
  OptimizerSettings& s = o.optimizer;
  return {
      {"lr", number(s.lr, 0, 100), "Highest learning rate", lm.with_key("optimizer.lr").recorded("lr")},
      {"min_lr", number(s.min_lr, 0, 100), "Learning rate at the end of the cosine or line",
       lm.with_key("lr_scheduler.min_lr").recorded("min_lr")},
      {"schedule", choice(s.schedule), "The learning rate after its warm-up (default cosine)",
       lm.recorded("optimizer_settings.schedule")},
      {"warmup", integer(s.warmup, 0), "Steps of linear warm-up",
       lm.with_key("lr_scheduler.warmup").recorded("warmup")},
      {"warmup_ratio", number(o.warmup_ratio, 0, 1), "Warm-up as a share of all steps, instead of --warmup",
       lm.replacing("warmup")},
      {"warmup_from", integer(s.warmup_from, 0, 1),
       "What the first step of the warm-up counts as; 0: its learning rate is 0, as in transformers",
       lm.recorded("optimizer_settings.warmup_from")},
      {"weight_decay", number(s.weight_decay, 0, 100), "Of matrices and embeddings",
       lm.with_key("optimizer.weight_decay").recorded("weight_decay")},
      {"grad_accum", integer(o.grad_accum, 1, 1 << 20), "Forwards per step",
       also.with_key("trainer.accumulate_grad_batches").recorded("grad_accum")},
      {"clip", number(o.clip, 0, 1e30), "Largest norm of the gradients (--clip-by); 0: not clipped",
       also.with_key("trainer.gradient_clip_val").recorded("clip")},
      {"precision", word(o.precision, {"32-true", "bf16-mixed", "16-mixed", "fp8"}),
       "Default bf16-mixed; weights are f32 in each", also.with_key("trainer.precision").recorded("precision")},
      {"half_precision_backend", either(o.cpu_amp, "hpu_amp", "cpu_amp"),
       "Whose autocast bf16-mixed is: the device's (default), or the CPU's with --device cpu",
       lm.recorded("half_precision_backend?")},
      {"recipe", text(o.recipe, io::Reach::read), recipe_help(), also.recorded("recipe").needing("precision=fp8")},
      {"keep", list(o.keep), "Regular expression: modules that stay in bf16 (default lm_head and embeddings)",
       also.recorded("keep").needing("precision=fp8")},
      {"measurements", text(o.measurements, io::Reach::beside),
       "With fp8: the first step's scales from this measurement (folder, prefix or file)",
       also.needing("precision=fp8")},
      {"dry_run", flag(o.plan),
       "With fp8: print what would be converted, its bytes, flops and expected error; nothing is trained or written",
       also.needing("precision=fp8")},
      {"optimizer", choice(s.kind), "Default adamw; muon: for the matrices of the layers, adamw for the rest",
       lm.recorded("optimizer")},
      {"beta1", number(s.beta1, 0, 0.9999999), "Of adamw: share of the mean gradient that stays",
       lm.recorded("optimizer_settings.beta1")},
      {"beta2", number(s.beta2, 0, 0.9999999), "Of adamw: share of the mean square that stays",
       lm.recorded("optimizer_settings.beta2")},
      {"eps", number(s.eps, 0, 1), "Of adamw", lm.with_key("optimizer.eps").recorded("optimizer_settings.eps")},
      {"eps_mode", choice(s.eps_mode),
       "Of adamw, where --eps is added: after the correction of the mean square (default), or before it as on the "
       "device",
       lm.recorded("optimizer_settings.eps_mode")},
  };
}

Rows loop_rows(TrainOptions& o) {
  return {
      {"eval", path(o.eval), "Text for eval_loss, after the last step", lm.with_key("data.val").recorded("eval")},
      {"eval_every", integer(o.eval_every, 1, kMany, "at the end only"), "Steps between evaluations",
       lm.needing("eval")},
      {"eval_each_epoch", flag(o.eval_each_epoch), "With --eval: an evaluation after each pass over the data",
       lm.needing("eval").replacing("eval_every")},
      {"eval_batch", integer(o.eval_batch, 1, 65536, "--batch"), "Chunks per forward of an evaluation",
       lm.with_key("data.val_batch_size").needing("eval")},
      {"save_every", integer(o.save_every, 1, kMany, "at the end only"), "Steps between checkpoints"},
      {"save_each_epoch", flag(o.save_each_epoch), "A checkpoint after each pass over the data",
       lm.replacing("save_every")},
      {"keep_checkpoints", integer(o.keep_checkpoints, 1), "Newest checkpoints that stay"},
      {"resume", flag(o.resume),
       "Go on from the newest checkpoint in --out, if there is one: as before, but for more --steps"},
      {"overwrite", flag(o.overwrite), "Begin anew in an --out that holds a run", also.replacing("resume")},
      {"activation_checkpointing", flag(o.activation_checkpointing),
       "Keep the inputs of layers only, run them again in backward",
       lm.with_key("model.activation_checkpointing").recorded("activation_checkpointing")},
      {"minimize_memory", flag(o.minimize_memory), "With fp8: weights are cast again in backward",
       also.needing("precision=fp8")},
      {"last_batch", last_batch(o),
       "What is left over of an epoch: a smaller batch (default), none, or a whole one with its first chunks once more "
       "(the default of --lazy)",
       lm.with_key("data.last_batch").recorded("last_batch?")},
      {"drop_last", flag(o.drop_last), "Another name of --last-batch drop",
       lm.with_key("data.drop_last").recorded("drop_last?").replacing("last_batch")},
      {"save_dtype", choice(o.save_dtype, choice_of({FloatType::BF16, FloatType::F32, FloatType::F16})),
       "Of the weights that are written (default bf16)", lm.with_key("model.save_dtype").recorded("save_dtype")},
      {"non_finite", choice(o.nonfinite),
       "A loss or gradient is NaN or infinite: end (default), or leave that step out", also.recorded("non_finite")},
      {"stats_every", integer(o.statistics_every, 0),
       "With fp8: steps between counts of saturated and underflowed elements in the log; 0: never"},
      {"logging_steps", integer(o.logging_steps, 1),
       "Steps between Optimum's three rows of device memory (GB) in the log"},
      {"throughput_warmup", integer(o.throughput_warmup, 0), "First steps that do not count for tokens_per_second"},
      {"whole_time", flag(o.whole_time),
       "Logging, evaluation and saving count for tokens_per_second (default: they don't)"},
      {"hpu_graphs", flag(o.hpu_graphs),
       "Capture training steps and replay them: equal bits, without the program's work between operations",
       also.with_key("trainer.use_hpu_graphs_for_training")},
      {"hpu_graphs_inference", flag(o.hpu_graphs_inference), "The same for steps of evaluations",
       also.with_key("trainer.use_hpu_graphs_for_inference")},
      {"max_hpu_graphs", integer(o.max_hpu_graphs, 1),
       "Kinds of steps that are captured; further ones run as they are"},
      {"lazy", flag(o.lazy), "Operations run while the program continues: equal bits, on a second core",
       also.with_key("trainer.use_lazy_mode")},
      {"pipelining", flag(o.pipelining), "Of --lazy: forward runs from its end on, not from that of backward",
       also.needing("lazy").with_key("trainer.pipelining_fwd_bwd")},
      {"non_blocking", flag(o.non_blocking),
       "Batches are copied to hpu from pinned memory: with --lazy the copy waits with the other operations",
       also.with_key("trainer.non_blocking_data_copy")},
      {"count_graphs", flag(o.count_graphs),
       "Count the graphs that Gaudi's lazy mode would compile, and say what makes each new one"},
  };
}

Rows run_rows(TrainOptions& o) {
  RunSettings& run = o.run;
  CallbackSettings& s = o.callbacks;
  return {
      {"training_args", path(o.training_args),
       "GaudiTrainingArguments of Optimum Habana as a JSON (fp8 config explain FILE); options and run files win", lm},
      {"gaudi_config", path(o.gaudi_config),
       "gaudi_config.json of Optimum Habana, or its folder (default: gaudi_config_name of --training-args)", lm},
      {"config", list(run.configs, io::Reach::read),
       "Run file (YAML or JSON, as LightningCLI's), several times if wanted: later ones win, then "
       "--trainer.max_steps=5 and its like, then options"},
      {"print_config", flag(run.print_config),
       "Print a run file that says it all, with the source of each value; nothing is trained"},
      {"dotted", shared([&run](Options& options) { options.rest(is_dotted, run.dotted); })},
      {"logger", list(s.loggers),
       "csv or tensorboard: the numbers of log.jsonl in this form too; several times if wanted"},
      {"max_time", number(s.max_time, 0, 1e9),
       "Seconds after which the step in progress is the last, as if --steps had been reached; 0: no limit",
       also.with_key("trainer.max_time")},
      {"patience", integer(s.patience, 1, kMany, "never"),
       "With --eval: end after so many evaluations in a row without a lower eval_loss",
       also.recorded("callbacks.patience").needing("eval")},
      {"save_best", integer(s.save_best, 1, kMany, "none"),
       "With --eval: so many checkpoints of lowest eval_loss stay in OUT/best",
       also.recorded("callbacks.save_best").needing("eval")},
      {"load_best", flag(s.load_best),
       "With --save-best: the model in OUT has the weights of the lowest eval_loss, not the last step's",
       lm.recorded("callbacks.load_best").needing("save_best")},
      {"clip_by", either(s.clip_by_value, "norm", "value"),
       "What --clip limits: the norm of all gradients (default), or each element's magnitude",
       also.with_key("trainer.gradient_clip_algorithm").recorded("callbacks.clip_by")},
      {"profile", shared([&o](Options& options) { add_profile_options(options, o.profile, "optimizer step"); })},
  };
}

Rows strategy_rows(StrategySettings& s) {
  const auto with_ddp = also.needing("strategy=hpu_ddp");
  return {
      {"strategy", word(s.strategy, strategy_names()), strategy_help(),
       also.with_key("trainer.strategy").recorded("strategy.name")},
      {"bucket_cap_mb", integer(s.bucket_cap_mb, 1, 65536), "Of hpu_ddp: MiB of a bucket",
       with_ddp.with_key("strategy.bucket_cap_mb").recorded("strategy.bucket_cap_mb")},
      {"find_unused_parameters", flag(s.find_unused_parameters),
       "Of hpu_ddp: a step may leave parameters out, at the cost of a walk through its graph",
       with_ddp.with_key("strategy.find_unused_parameters").recorded("strategy.find_unused_parameters")},
      {"static_graph", flag(s.static_graph), "Of hpu_ddp: each step uses the same parameters in the same order",
       with_ddp.with_key("strategy.static_graph").recorded("strategy.static_graph")},
      {"gradient_as_bucket_view", flag(s.gradient_as_bucket_view),
       "Of hpu_ddp: gradients live in the buckets, one copy less",
       with_ddp.with_key("strategy.gradient_as_bucket_view").recorded("strategy.gradient_as_bucket_view")},
      {"comm_hook", choice(s.comm_hook, choice_of({FloatType::BF16, FloatType::F16})),
       "Of hpu_ddp: what buckets travel as (default f32)", with_ddp.recorded("strategy.comm_hook")},
      {"fusion_buffer_dtype",
       choice(s.fusion_buffer_dtype, choice_of({FloatType::BF16, FloatType::F32, FloatType::F16})),
       "Of fast_ddp: what gradients travel as (default bf16)",
       also.recorded("strategy.fusion_buffer_dtype").needing("strategy=fast_ddp")},
      {"reduce_amax", text(s.reduce_amax),
       "With fp8: who shares amaxes, and so scales: all ranks, off, or each so many ranks",
       also.recorded("strategy.reduce_amax")},
      {"rank_timeout", shared([&s](Options& options) { add_rank_timeout_option(options, s.timeout); })},
      {"seed", {}, "", also.with_key("seed_everything")},
      {"device", {}, "", also.with_key("trainer.accelerator")},
  };
}

std::int64_t whole(double steps) { return static_cast<std::int64_t>(std::ceil(steps)); }

}  // namespace

std::vector<TrainRow> train_rows(TrainOptions& o) {
  std::vector<TrainRow> all;
  for (auto rows : {model_rows(o), optimizer_rows(o), loop_rows(o), run_rows(o), strategy_rows(o.ranks)})
    std::ranges::move(rows, std::back_inserter(all));
  return all;
}

const std::vector<TrainRow>& train_table() {
  static TrainOptions defaults;
  static const auto rows = train_rows(defaults);
  return rows;
}

const TrainRow* find_option(std::string_view name) {
  const auto row = std::ranges::find(train_table(), name, &TrainRow::name);
  return row != train_table().end() ? &*row : nullptr;
}

const TrainRow* find_key(std::string_view key) {
  const auto row = std::ranges::find_if(train_table(), [&](const TrainRow& r) { return r.columns.key == key; });
  return row != train_table().end() ? &*row : nullptr;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const auto word : std::views::split(text, ' ')) words.emplace_back(word.begin(), word.end());
  return words;
}

bool is_set(const TrainRow& row) { return row.field.value() != find_option(row.name)->field.value(); }

trainer::StrategyKind StrategySettings::kind() const {
  return parse_enum<trainer::StrategyKind>(strategy).value_or(trainer::StrategyKind::automatic);
}

int StrategySettings::amax_ranks(int size) const {
  if (reduce_amax == "off") return 0;
  if (reduce_amax == "all") return size;
  const auto ranks = io::parse_integer(reduce_amax, 1, size);
  if (!ranks || size % *ranks != 0)
    io::fail<UsageError>("--reduce-amax: found '{}' with {} ranks, allowed: all, off, or a number that divides them",
                         reduce_amax, size);
  return static_cast<int>(*ranks);
}

void count_steps(TrainOptions& o, const std::function<std::int64_t(double)>& steps_of) {
  const std::int64_t epoch = std::max<std::int64_t>(1, steps_of(1));
  if (o.epochs > 0) o.optimizer.steps = std::max<std::int64_t>(1, steps_of(o.epochs));
  if (o.run.trainer.accumulate_grad_batches.size() > 1 && (o.eval_each_epoch || o.save_each_epoch))
    throw UsageError(
        "--eval-each-epoch and --save-each-epoch: found with a schedule of accumulate_grad_batches, whose "
        "epochs have different steps, allowed: val_check_interval, --save-every");
  if (o.warmup_ratio > 0) o.optimizer.warmup = whole(o.warmup_ratio * static_cast<double>(o.optimizer.steps));
  if (o.eval_each_epoch) o.eval_every = epoch;
  if (o.save_each_epoch) o.save_every = epoch;
  check_steps(o);
}

void check_steps(const TrainOptions& o) {
  const std::int64_t steps = o.optimizer.steps;
  const std::string of = o.epochs > 0 ? fmt::format(", which --epochs {} come to", o.epochs) : "";
  if (o.throughput_warmup > 0 && o.throughput_warmup >= steps)
    io::fail<UsageError>("--throughput-warmup: found {}, allowed: fewer than --steps {}{}", o.throughput_warmup, steps,
                         of);
  if (o.optimizer.warmup > steps)
    io::fail<UsageError>("--warmup: found {}, allowed: at most --steps {}{}", o.optimizer.warmup, steps, of);
}

}  // namespace fp8::commands
