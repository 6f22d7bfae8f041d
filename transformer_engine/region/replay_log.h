// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing runs a forward twice; the second run must find the scales of the first. The first run notes
// what every product was given, in order; the second run gets it back, and records nothing.
#pragma once
#include <deque>
#include <map>
#include <optional>

#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

class ReplayLog {
 public:
  /// outer: the log around this one, when checkpointed functions nest.
  explicit ReplayLog(ReplayLog* outer = nullptr) : outer_(outer) {}

  void start_replay() {
    replaying_ = true;
    outer_ = nullptr;
    left_ = noted_;
  }
  /// A second run is going on, here or around: its casts were recorded by the first.
  bool replaying() const { return replaying_ || (outer_ != nullptr && outer_->replaying()); }
  /// The log around this one, in its own first run, will be asked for it too.
  void remember(const Fp8State& state, const StepScales& scales) {
    noted_[&state].push_back(scales);
    if (outer_ != nullptr && !outer_->replaying()) outer_->remember(state, scales);
  }
  /// In a second run what the first was given, nothing in a first run. Throws c10::Error if the second run calls a
  /// product more often.
  std::optional<StepScales> given(const Fp8State& state);

 private:
  bool replaying_ = false;
  ReplayLog* outer_;
  std::map<const Fp8State*, std::deque<StepScales>> noted_, left_;
};

/// The log of the run that is going on in this thread; null outside of activation checkpointing.
ReplayLog* current_replay_log();

class ReplayScope {
 public:
  explicit ReplayScope(ReplayLog* log);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  ReplayLog* previous_;
};

}  // namespace fp8::te
