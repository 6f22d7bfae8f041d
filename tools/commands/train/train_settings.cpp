// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <system_error>

#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/io/atomic/output_place.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/train/train_run.h"

namespace fp8::commands {
namespace {

/// The keys of train.json in their order, and of strategy those that do not stand there in the order of the help.
constexpr const char* kKeys =
    "init model data eval steps batch seq_len grad_accum optimizer lr min_lr warmup weight_decay optimizer_settings "
    "clip "
    "precision recipe keep activation_checkpointing save_dtype non_finite strategy strategy/name "
    "strategy/gradient_as_bucket_view strategy/find_unused_parameters strategy/static_graph callbacks run "
    "half_precision_backend drop_last last_batch autocast_ops device seed";

/// Keys that fingerprints and values stand for, and the one that may change.
constexpr const char* kNotCompared[] = {"init", "data", "eval", "recipe", "steps"};

void compare_settings(const std::filesystem::path& file, const io::Json& written, const io::Json& asked) {
  for (const auto& [key, value] : asked.items()) {
    if (std::find(std::begin(kNotCompared), std::end(kNotCompared), key) != std::end(kNotCompared)) continue;
    const auto found = written.find(key);
    if (found == written.end() ? !value.is_null() : *found != value)
      io::fail<io::Error>("{}: key '{}': the run was started with {}, --resume found {}, allowed: the same",
                          file.string(), key, found == written.end() ? "none" : found->dump(), value.dump());
  }
}

/// The options: a group is null where each has its default, as in files that are older than its options.
io::Json option_settings(const TrainOptions& o) {
  io::Json json = io::Json::object();
  for (const auto& key : words_of(kKeys)) json[io::Json::json_pointer("/" + key)] = nullptr;
  TrainOptions copy = o;
  for (const TrainRow& row : train_rows(copy)) {
    std::string record = row.columns.record;
    const auto dot = record.find('.');
    const bool optional = dot != std::string::npos || record.ends_with('?');
    if (record.empty() || (optional && !is_set(row))) continue;
    if (dot != std::string::npos) record[dot] = '/';
    std::erase(record, '?');
    json[io::Json::json_pointer("/" + record)] = row.field.value();
  }
  if (o.optimizer.warmup == 0 && json["optimizer_settings"].is_object())
    json["optimizer_settings"].erase("warmup_from");
  if (o.precision != "fp8")
    json["recipe"] = nullptr;
  else if (o.recipe.empty())
    json["recipe"] = kDefaultRecipe;
  for (const char* group : {"optimizer_settings", "strategy", "callbacks"}) {
    io::Json left = io::Json::object();
    for (const auto& [key, value] : json[group].items())
      if (!value.is_null()) left[key] = value;
    json[group] = left.empty() ? io::Json(nullptr) : left;
  }
  return json;
}

/// Keys of a run file that are no options, and decide about numbers; null where there is none.
io::Json run_settings(const RunSettings& run) {
  io::Json json = io::Json::object();
  const auto trainer = run.tree.is_object() ? run.tree.find("trainer") : run.tree.end();
  if (trainer == run.tree.end() || !trainer->is_object()) return nullptr;
  for (const char* key :
       {"limit_train_batches", "limit_val_batches", "overfit_batches", "val_check_interval", "check_val_every_n_epoch",
        "accumulate_grad_batches", "fast_dev_run", "use_distributed_sampler", "callbacks"}) {
    const auto found = trainer->find(key);
    if (found != trainer->end() && !found->is_null()) json[key] = *found;
  }
  // A number of batches is --grad-accum, however it was said.
  if (json.contains("accumulate_grad_batches") && !json["accumulate_grad_batches"].is_object())
    json.erase("accumulate_grad_batches");
  return json.empty() ? io::Json(nullptr) : json;
}

namespace fs = std::filesystem;

/// Nothing in the folder but what a killed run may have left under a temporary name.
bool holds_nothing(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string()[0] != '.') return false;
  return true;
}

namespace distributed = runtime::distributed;

/// The options whose paths may differ from machine to machine; the contents of the files may not.
constexpr const char* kPlaces[] = {"init", "model", "data", "eval", "recipe"};

distributed::BucketDtype bucket_dtype(const StrategySettings& s) {
  if (!s.comm_hook) return distributed::BucketDtype::as_it_is;
  return *s.comm_hook == kernels::FloatType::BF16 ? distributed::BucketDtype::bf16 : distributed::BucketDtype::f16;
}

}  // namespace

io::Json train_settings(const TrainOptions& o, const Context& context, const io::Json& more) {
  io::Json json = option_settings(o);
  json["run"] = run_settings(o.run);
  if (o.autocast_ops) json["autocast_ops"] = {{"bf16", o.autocast_ops->bf16}, {"fp32", o.autocast_ops->fp32}};
  json["device"] = context.device;
  json["seed"] = context.seed;
  json.update(more);
  return json;
}

ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& o) {
  if (!written.is_object() || !written.value("steps", io::Json()).is_number_integer())
    io::fail<io::Error>("{}: is no train.json of fp8 train, expected an object with an integer 'steps'", file.string());
  compare_settings(file, written, asked);
  const auto before = written["steps"].get<std::int64_t>(), steps = o.optimizer.steps;
  const auto saved = trainer::checkpoint_steps(o.out / "checkpoints");
  ResumedSteps found{saved.empty() ? 0 : saved.back(), ""};
  if (steps < found.done)
    io::fail<io::Error>("{}: key 'steps': {} of {} steps are done, --resume found {}, allowed: {} or more",
                        file.string(), found.done, before, steps, found.done);
  if (steps == before) return found;
  const char* shape = o.optimizer.schedule == OptimizerSettings::Schedule::linear ? "line" : "cosine";
  if (found.done == 0) {
    found.warning =
        fmt::format("--steps: the run was started with {}, and begins with {} since none is done", before, steps);
  } else if (o.optimizer.schedule == OptimizerSettings::Schedule::constant) {
    return found;  // no rate depends on the steps to come
  } else if (steps > found.done) {
    const double rate = o.optimizer.lr * lr_factor(o.optimizer)(found.done);
    found.warning = fmt::format(
        "--steps: the run was started with {}, {} are done, it goes on to {}: the learning rate follows the {} of {} "
        "steps from here on ({:.4g} at step {}), so the result is not that of {} steps from the start",
        before, found.done, steps, shape, steps, rate, found.done + 1, steps);
  } else {
    found.warning = fmt::format(
        "--steps: the run was started with {} and ends after the {} that are done: the learning rate has not come down "
        "its {}",
        before, found.done, shape);
  }
  return found;
}

bool open_folder(const TrainOptions& o, const io::Json& settings,
                 const std::function<bool(const fs::path& file, const io::Json& written)>& check) {
  const auto file = o.out / kTrainSettingsFile;
  std::error_code error;
  if (fs::exists(o.out, error) && !fs::is_directory(o.out, error))
    io::fail<io::Error>("{}: found a file, allowed: a folder", o.out.string());
  const bool empty = holds_nothing(o.out);
  const bool run = fs::exists(file, error);
  if (o.resume && run) {
    const auto written = io::read_json(file);
    const bool longer = check(file, written);
    TrainLog::refuse_if_locked(o.out / kTrainLogFile);
    if (longer) {
      fs::remove(o.out / io::kWeightsFile, error);
      fs::remove_all(o.out / "measurements", error);
    }
    if (written != settings) io::write_json(file, settings);
    return true;
  }
  if (!empty && !run)
    io::fail<io::Error>("{}: is not empty and holds no run of fp8 train, allowed: a new or empty folder",
                        o.out.string());
  if (!empty && !o.overwrite)
    io::fail<io::Error>("{}: holds a run, allowed: --resume to go on with it, --overwrite to begin anew",
                        o.out.string());
  const bool made = io::OutputPlace::make_folders(o.out, error);
  if (!made && error) io::fail<io::Error>("{}: can't be made: {}", o.out.string(), error.message());
  if (made) io::set_mode(o.out, io::OutputModes(o.model).folder());
  if (run) TrainLog::refuse_if_locked(o.out / kTrainLogFile);  // --overwrite is not meant for a run that is going on
  for (const char* name : {"checkpoints", "measurements", kBestFolder, kTensorBoardFolder})
    fs::remove_all(o.out / name);
  for (const char* name : {io::kWeightsFile, kTrainLogFile, kCsvFile}) fs::remove(o.out / name, error);
  io::write_json(file, settings);
  return false;
}

TrainRanks::TrainRanks(const StrategySettings& settings, bool fp8, Context& context) : settings_(settings) {
  auto options = distributed::group_options_from_environment();
  const int share_amaxes = settings.amax_ranks(options.size);
  if (settings.kind() == trainer::StrategyKind::hpu_single && options.size > 1)
    io::fail<UsageError>("--strategy: found hpu_single with {} ranks, allowed: auto, hpu_parallel, hpu_ddp, fast_ddp",
                         options.size);
  if (options.size == 1) return;
  if (options.rank > 0) context.quiet = true;
  said_by_ = options.said_by;
  options.timeout = std::chrono::seconds(settings.timeout);
  options.stop_asked = interrupted;
  options.give_up = end_interrupted;
  group_ = distributed::make_gloo_group(options);
  if (fp8 && share_amaxes > 1) amax_group_ = distributed::make_subgroup(group_, share_amaxes);
}

trainer::StrategyOptions TrainRanks::strategy() const {
  trainer::StrategyOptions options;
  options.kind = settings_.kind();
  options.ddp = {.bucket_cap_mb = settings_.bucket_cap_mb,
                 .find_unused_parameters = settings_.find_unused_parameters,
                 .static_graph = settings_.static_graph,
                 .gradient_as_bucket_view = settings_.gradient_as_bucket_view,
                 .bucket_dtype = bucket_dtype(settings_)};
  if (settings_.fusion_buffer_dtype)
    options.fusion_buffer_dtype = runtime::ops::dtype_of(*settings_.fusion_buffer_dtype);
  return options;
}

const char* TrainRanks::strategy_name() const { return name_of(trainer::resolve_strategy(settings_.kind(), size())); }

void TrainRanks::check_same(io::Json settings, const std::string& weights) const {
  if (group_ == nullptr) return;
  for (const char* place : kPlaces) settings.erase(place);
  settings["weights"] = weights;
  distributed::check_same(with_program(std::move(settings)), *group_, "train");
}

bool TrainRanks::on_first(const std::function<bool()>& f) const {
  if (group_ == nullptr) return f();
  return distributed::from_first([&] { return std::string(f() ? "yes" : ""); }, *group_) == "yes";
}

}  // namespace fp8::commands
