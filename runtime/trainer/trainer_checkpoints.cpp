// SPDX-License-Identifier: Apache-2.0
// What fit() leaves: checkpoints, of the run, its metrics and its callbacks, and the result.
#include <system_error>
#include <utility>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
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
  if (error) io::fail(root, "can't be made: " + error.message());
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
      throw io::Error("[trainer] checkpoint, callback " + key + ": " + error.what());
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
    throw io::Error(std::string("[trainer] checkpoint, ") + HPUCheckpointIO::kJson + ": " + error.what());
  }
  run.first_step = run.saved_step = run.step;
  run.resumed_from = std::move(state);
}

}  // namespace fp8::trainer
