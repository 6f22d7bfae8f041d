// SPDX-License-Identifier: Apache-2.0
// The results of fit(): checkpoints of the run, its metrics and its callbacks, and the summary.
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <system_error>

#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

constexpr int kFormat = 1;

io::Json to_json(const StepReport& r) {
  return {{"epoch", r.epoch},
          {"batches", r.batches},
          {"samples", r.samples},
          {"tokens", r.tokens},
          {"loss", io::number_or_text(r.loss)},
          {"lr", r.lr},
          {"grad_norm", io::number_or_text(r.grad_norm)},
          {"seconds", r.seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"skipped", r.skipped},
          {"loss_scale", r.loss_scale ? io::Json(*r.loss_scale) : io::Json()},
          {"anomaly", r.anomaly}};
}

StepReport report_from(const io::Json& json, std::int64_t step) {
  StepReport r{step, json.at("epoch"), json.at("batches"), json.at("samples"), json.at("tokens")};
  r.loss = io::number_or_nan(json.at("loss"));
  r.lr = json.at("lr");
  r.grad_norm = io::number_or_nan(json.at("grad_norm"));
  r.seconds = json.at("seconds");
  r.tokens_per_second = json.at("tokens_per_second");
  r.skipped = json.at("skipped");
  if (!json.at("loss_scale").is_null()) r.loss_scale = json.at("loss_scale").get<double>();
  r.anomaly = json.at("anomaly");
  return r;
}

std::string optimizer_name(std::size_t index) { return "optimizer." + std::to_string(index); }

}  // namespace

FitResult Trainer::result_of(const Run& run) const {
  FitResult result;
  result.steps = run.step;
  result.epochs = run.epoch + (run.batch == run.train_batches ? 1 : 0);  // a checkpoint may end with an epoch
  result.resumed_from = run.first_step;
  result.samples = run.samples;
  result.tokens = run.tokens;
  result.skipped_steps = run.skipped;
  result.stopped = run.stopped;
  result.unvalidated = run.unvalidated.has_value();
  result.stop_reason = run.stop_reason;
  result.val_loss = run.val_loss;
  if (!run.recent.empty()) {
    result.last_loss = run.recent.back();
    result.loss_last20 = 0;
    for (const double loss : run.recent) result.loss_last20 += loss / static_cast<double>(run.recent.size());
  }
  result.speed = speed_;
  result.graphs = run.graphs.counts();
  result.graph_refusals = run.graphs.refusals();
  return result;
}

void Trainer::write_checkpoint(Run& run, const std::filesystem::path& folder, const std::function<void()>& then) {
  const runtime::PhaseScope phase("checkpoint");
  const runtime::ProfiledAction action(options_.profiler.get(), "save_checkpoint");
  if (run.group != nullptr) run.group->meet("save_checkpoint after step " + std::to_string(run.step));
  run.check_gradients();  // nothing is written that no rank would have alone
  each([&](auto& callback) { callback.on_save_checkpoint(*this, run.step); });
  TrainingState own = run.own_state(), state;
  own.json["metrics"] = metrics_.state();
  if (run.first()) {
    state = run.state(own);
    state.json["callbacks"] = callback_states();
    for (const auto& callback : callbacks_)
      for (auto& [name, tensor] : callback->state_tensors())
        state.tensors["callback." + key_of(*callback) + "." + name] = tensor;
    if (options_.max_time > 0) state.json["seconds"] = run.seconds_before + now() - run.start;
  }
  if (run.group != nullptr) add_other_ranks(own, state, *run.group);
  run.on_first([&] {
    HPUCheckpointIO().save_checkpoint(state, folder,
                                      [&](const std::filesystem::path& files) { run.module.save_files(files); });
    if (then) then();
  });
}

void Trainer::save(Run& run) {
  const auto& root = options_.checkpoint_root;
  write_checkpoint(run, checkpoint_folder(root, run.step), [&] {
    const auto steps = checkpoint_steps(root);
    for (std::size_t i = 0; i + static_cast<std::size_t>(options_.keep_checkpoints) < steps.size(); ++i)
      if (steps[i] != run.step) HPUCheckpointIO().remove_checkpoint(checkpoint_folder(root, steps[i]));
  });
  run.saved_step = run.step;
}

void Trainer::save_checkpoint(const std::filesystem::path& folder) {
  running("save_checkpoint");
  write_checkpoint(*run_, folder, {});
}

io::Json Trainer::callback_states() const {
  io::Json states = io::Json::object();
  for (const auto& callback : callbacks_)
    if (const auto key = key_of(*callback); !key.empty()) states[key] = callback->state();
  return states;
}

/// Its state's name in a checkpoint: of the second logger of a name "NAME#2".
std::string Trainer::key_of(const TrainerCallback& callback) const {
  const std::string key = callback.state_key();
  int number = 1;
  for (auto other = callbacks_.begin(); other->get() != &callback; ++other) number += (*other)->state_key() == key;
  return key.empty() || number == 1 ? key : key + "#" + std::to_string(number);
}

/// Makes the folder for checkpoints. Returns whether the run to resume has begun there, but has no checkpoint yet.
bool Trainer::prepare_root(const Run& run) const {
  const auto& root = options_.checkpoint_root;
  if (root.empty() || !run.first()) return false;
  std::error_code error;
  const bool new_one = std::filesystem::create_directories(root, error);
  if (error) io::fail(root, "can't be made: {}", error.message());
  remove_incomplete_checkpoints(root);
  return options_.resume && !new_one && checkpoint_steps(root).empty();
}

void Trainer::load_callbacks(const Run& run) {
  for (const auto& callback : callbacks_) {
    const std::string key = key_of(*callback);
    const auto found = run.callback_states.find(key);
    if (found == run.callback_states.end()) {
      callback->begin_anew();
      continue;
    }
    try {
      callback->load_state(*found);
      callback->load_state_tensors(tensors_below(run.callback_tensors, "callback." + key + "."));
    } catch (const io::Json::exception& error) {
      io::fail<io::Error>("[trainer] checkpoint, callback {}: {}", key, error.what());
    }
  }
}

/// Rank 0 alone needs to reach the files.
void Trainer::load_newest(Run& run) {
  const auto newest = [&] {
    const auto steps = checkpoint_steps(options_.checkpoint_root);
    if (steps.empty()) return TrainingState{};
    return HPUCheckpointIO().load_checkpoint(checkpoint_folder(options_.checkpoint_root, steps.back()));
  };
  TrainingState state = run.group != nullptr ? load_on_all(newest, *run.group) : newest();
  if (state.json.empty()) return;
  if (run.group != nullptr) take_own_part(state, run.group->rank(), run.group->size());
  run.restore(state);
  try {
    run.seconds_before = state.json.value("seconds", 0.0);
    run.callback_states = state.json.value("callbacks", io::Json::object());
    for (const auto& [name, tensor] : state.tensors)
      if (name.starts_with("callback.")) run.callback_tensors[name] = tensor;
    if (state.json.contains("metrics")) metrics_.load(state.json["metrics"]);
    if (!run.first() && state.json.value("ranks", 1) != run.group->size()) metrics_.drop_train_means();
  } catch (const io::Json::exception& error) {
    io::fail<io::Error>("[trainer] checkpoint, {}: {}", HPUCheckpointIO::kJson, error.what());
  }
  run.first_step = run.saved_step = run.step;
  run.resumed_from = std::move(state);
}

TrainingState Trainer::Run::own_state() const {
  TrainingState own;
  for_each_tensor(module.network(), [&](const std::string& name, const at::Tensor& tensor) {
    if (name.starts_with("buffer.")) own.tensors[name] = tensor.detach();
  });
  own.tensors["rng.cpu"] = random_state();
  auto extra = module.extra_state();
  own.json["extra"] = std::move(extra.json);
  for (auto& [name, tensor] : extra.tensors) own.tensors["extra." + name] = std::move(tensor);
  return own;
}

TrainingState Trainer::Run::state(TrainingState own) const {
  TrainingState state = std::move(own);
  state.json.update({{"format", kFormat},
                     {"step", step},
                     {"epoch", epoch},
                     {"batch", batch},
                     {"samples", samples},
                     {"tokens", tokens},
                     {"skipped", skipped},
                     {"recent_losses", recent},
                     {"val_loss", nullptr},
                     {"ranks", group != nullptr ? group->size() : 1},
                     {"shares", {{"size", share.size}, {"offset", share.offset_of(epoch)}}},
                     {"schedulers", scheduler_steps}});
  if (val_loss) state.json["val_loss"] = *val_loss;
  if (unvalidated) state.json["unvalidated"] = to_json(*unvalidated);
  if (scaler) state.json["grad_scaler"] = scaler->state();
  for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i)
    save_optimizer(*optimizers.optimizers[i], module.network(), optimizer_name(i), state);
  for_each_tensor(module.network(), [&](const std::string& name, const at::Tensor& tensor) {
    if (name.starts_with("parameter.")) state.tensors[name] = tensor.detach();
  });
  return state;
}

/// On another number of ranks the next batch is the first that no rank has taken.
void Trainer::Run::find_place(const io::Json& shares) {
  const BatchShare before{0, shares.value("size", 1), epoch, shares.value("offset", std::int64_t{0})};
  if (before.size < 1 || before.offset < 0 || before.offset >= before.size)
    io::fail<io::Error>("[trainer] checkpoint: shares {}, allowed: an offset below the size", shares.dump());
  if (before.size == share.size) {
    share.offset_epoch = epoch;
    share.offset = before.offset;
    return begin_epoch();
  }
  batch = share.go_to(epoch, std::max(std::int64_t{0}, before.taken(epoch, batch)), train.batches());
  begin_epoch();
  batch = std::min(batch, train_batches);
}

void Trainer::Run::restore(const TrainingState& state) {
  at::NoGradGuard no_grad;
  const auto& json = state.json;
  try {
    if (json.at("format") != kFormat)
      io::fail<io::Error>("[trainer] checkpoint: format {}, allowed: {}", json.at("format").dump(), kFormat);
    step = json.at("step");
    epoch = json.at("epoch");
    batch = json.at("batch");
    find_place(json.value("shares", io::Json::object()));
    whole_batch = batch;
    samples = json.at("samples");
    tokens = json.at("tokens");
    skipped = json.at("skipped");
    recent = json.at("recent_losses").get<std::deque<double>>();
    if (!json.at("val_loss").is_null()) val_loss = json.at("val_loss").get<double>();
    if (val != nullptr && json.contains("unvalidated")) unvalidated = report_from(json["unvalidated"], step);
    if (scaler) scaler->load(json.value("grad_scaler", io::Json()));
    load_network(module.network(), state);
    module.load_extra_state(extra_of(state));
  } catch (const io::Json::exception& error) {
    io::fail<io::Error>("[trainer] checkpoint, {}: {}", HPUCheckpointIO::kJson, error.what());
  }
  if (step < 0 || epoch < 0 || batch < 0 || batch > train_batches)
    io::fail<io::Error>("[trainer] checkpoint: step {}, epoch {}, batch {} is not a place in {} batches an epoch", step,
                        epoch, batch, train_batches);
}

void Trainer::Run::restore_optimizers() {
  find_base_rates();  // before the state's, which a schedule has moved
  if (!resumed_from) return;
  const at::NoGradGuard no_grad;
  const TrainingState state = *std::exchange(resumed_from, std::nullopt);
  try {
    const auto steps = state.json.at("schedulers").get<std::vector<std::int64_t>>();
    if (steps.size() != scheduler_steps.size())
      io::fail<io::Error>("[trainer] checkpoint: {} schedulers, the module has {}", steps.size(),
                          scheduler_steps.size());
    for (const auto taken : steps)
      if (taken < 0 || taken > step)
        io::fail<io::Error>("[trainer] checkpoint: a scheduler of {} steps, allowed: 0 to step {}", taken, step);
    // A scheduler keeps nothing but its count; the rates that it set are in the optimizer's state, loaded below.
    for (std::size_t i = 0; i < steps.size(); ++i)
      for (; scheduler_steps[i] < steps[i]; ++scheduler_steps[i]) optimizers.schedulers[i].scheduler->step();
    const auto device = parameters.empty() ? c10::Device(at::kCPU) : parameters[0].device();
    for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i)
      load_optimizer(*optimizers.optimizers[i], module.network(), optimizer_name(i), state, device);
  } catch (const io::Json::exception& error) {
    io::fail<io::Error>("[trainer] checkpoint, {}: {}", HPUCheckpointIO::kJson, error.what());
  }
  const auto rng = state.tensors.find("rng.cpu");
  if (rng == state.tensors.end()) throw io::Error("[trainer] checkpoint: tensor 'rng.cpu' is missing");
  set_random_state(rng->second);
}

}  // namespace fp8::trainer
