// SPDX-License-Identifier: Apache-2.0
// Parts of a model that others run a second time in backward: torch.utils.checkpoint, an autograd::Function that calls
// its forward twice.
//
//   first run    without gradients, in the region: cannot be told from an evaluation, so it records nothing and takes
//                the scales that a pass of training would take. Every product notes them, with its region and the
//                autograd node that the thread would make next.
//   second run   in backward, where the region may have ended, on another thread. The node that runs has a number: the
//                notes after it are those of its first run, call by call. Region, autocast dtype and scales come back;
//                this run is the pass of training: it records. A third run (backward with retain_graph) repeats it and
//                records nothing.
//
// te::checkpoint() and the operators fp8::checkpoint_* (fp8_module.h) know their two runs and need none of
// this. A second run whose first left no note (torch.utils.checkpoint(use_reentrant=False) keeps gradients on) throws:
// it would multiply in high precision.
#pragma once
#include <deque>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

/// The scales that one product's runs without gradients took. Old notes are dropped: a second run that needs one
/// throws.
class FirstRuns {
 public:
  static constexpr std::size_t kMostNotes = 1024, kMostRegions = 64;

  struct Found {
    std::shared_ptr<Fp8Region> region;
    StepScales scales;
    bool recorded = false;  ///< inside of te::checkpoint(), whose first run has recorded, or by a second run
    std::optional<at::ScalarType> autocast = {};  ///< dtype of the autocast region
  };
  struct Answer {
    bool known = false, dropped = false;
    std::shared_ptr<Found> found;  ///< null: the first run was outside of enabled regions
  };

  /// Of this thread, now. found: null outside of enabled regions.
  void note(std::shared_ptr<Found> found);
  /// The call-th run (from 0) that this thread noted after it had made the node of this number.
  Answer find(std::uint64_t thread, std::uint64_t number, std::size_t call) const;

  /// True if the last run outside of backward was in an enabled region.
  void ran_in_region(bool enabled) { in_region_ = enabled; }
  bool in_region() const { return in_region_; }

 private:
  struct Note {
    std::uint64_t thread, number, era;
    std::shared_ptr<Found> found;
  };
  mutable std::mutex mutex_;
  std::deque<Note> notes_;
  std::uint64_t era_ = 0;                           ///< of the newest note: one for each outermost region
  std::map<std::uint64_t, std::uint64_t> dropped_;  ///< largest number of a dropped note, per thread
  std::atomic<bool> in_region_{false};
};

/// One call of a product that may run in fp8, from before it asks for the region to its end. In a second run by others
/// the first run's region is in force while it lives. A product that is kept in high precision looks for none.
/// Throws c10::Error naming the product where that is not known.
class ProductRun {
 public:
  explicit ProductRun(Fp8State& state);
  ~ProductRun();
  ProductRun& operator=(ProductRun&&) = delete;

 private:
  friend const FirstRuns::Found* first_run_of(const Fp8State& state);
  friend void trains_as(const Fp8State& state, const StepScales& scales);
  void look_back();

  Fp8State& state_;
  ProductRun* previous_;
  bool inner_;  ///< the same product's run is around: it has looked already
  std::shared_ptr<FirstRuns::Found> found_;
  std::optional<StepScales> trained_;
  std::optional<RegionScope> region_;
  std::optional<runtime::autocast::InsideOp> inside_;
};

/// True if this thread is in the forward of an autograd.Function of Python's, which turns off forward-mode
/// differentiation besides gradients; inference and no_grad are told apart.
bool in_function();
/// In the backward of such a function, that takes the weight's part in it to its own hands, though its forward ran this
/// product in fp8: throws c10::Error naming the product. A second run of that forward would be training; this is none.
void refuse_backward_by_hand(const Fp8State& state, FirstRuns& first);

/// The record of the first run of the product that runs now on this thread; null if this is no second run (of others
/// than te::checkpoint).
const FirstRuns::Found* first_run_of(const Fp8State& state);
/// In a second run: it is the pass of training, with these scales.
void trains_as(const Fp8State& state, const StepScales& scales);

// Activation checkpointing runs a forward twice; the second run must find the scales of the first. The first run notes
// what every product was given, in order; the second run gets it back, and records nothing.

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
  ReplayScope& operator=(ReplayScope&&) = delete;

 private:
  ReplayLog* previous_;
};

/// While it lives, this thread is in no recomputation: for a pass that was called before one and runs within it, as
/// calls of lazy mode may.
class OutsideRecomputation {
 public:
  OutsideRecomputation();
  ~OutsideRecomputation();
  OutsideRecomputation& operator=(OutsideRecomputation&&) = delete;

 private:
  const ReplayScope none_{nullptr};
  ProductRun* run_;
};

}  // namespace fp8::te
