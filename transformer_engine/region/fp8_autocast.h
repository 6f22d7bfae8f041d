// SPDX-License-Identifier: Apache-2.0
// The region in which products run in fp8. What a forward pass finds in force is captured by its autograd nodes: the
// region may have ended when backward runs, on another thread.
//
//   { te::fp8_autocast region({.recipe = recipes::DelayedScaling::nvidia()}); loss = model(x); }   loss.backward();
//
// Regions nest: the innermost decides, and inherits from the outer one what it does not say (all but enabled and
// calibrating). Scales whose dialect moves them at the end of a step (nvidia) move when the outermost region ends
// without an exception.
#pragma once

#include "fp8/recipes/recipe.h"
#include "fp8/runtime/distributed/process_group.h"

namespace fp8::te {

class Fp8State;

struct Fp8AutocastOptions {
  bool enabled = true;
  std::optional<recipes::Recipe> recipe = {};  ///< default: the outer region's, else DelayedScaling::habana()
  bool calibrating = false;                    ///< with enabled = false: high precision, but amaxes are recorded
  std::optional<bool> force_measurement = {};  ///< overrules the recipe's interval: measure this pass, or don't
  std::shared_ptr<runtime::distributed::ProcessGroup> group =
      nullptr;                                   ///< amaxes become the largest of all ranks (recipe.reduce_amax)
  std::optional<bool> is_first_microbatch = {};  ///< true: fp8 weights are cast and kept; false: the kept ones are used
  std::uint64_t seed = 0;                        ///< of stochastic rounding; every rank draws numbers of its own
  bool statistics = false;                       ///< count saturated and underflowed elements of every cast
};

/// One region, shared by its RAII guard and the nodes made inside.
///
/// Amaxes meet those of the other ranks twice a step: those of forward when the outermost region ends, those of
/// backward when backward() does (in the engine's final callback, on the thread that ran last). Every rank must run the
/// same products in the same order between two meetings; other products, or none at all, are an error on all of them.
class Fp8Region : public std::enable_shared_from_this<Fp8Region> {
 public:
  Fp8Region(Fp8AutocastOptions options, std::shared_ptr<Fp8Region> outer);

  const Fp8AutocastOptions& options() const { return options_; }
  const recipes::Recipe& recipe() const { return recipe_; }
  bool enabled() const { return options_.enabled; }
  bool outermost() const { return outer_ == nullptr; }

  /// The ranks that share amaxes; null where there are no others.
  const std::shared_ptr<runtime::distributed::ProcessGroup>& group() const { return group_; }

  /// Of this process among those that train: the group's, else what the launcher says; 0 where nothing does.
  int rank() const { return rank_; }
  /// The outermost region: the step.
  Fp8Region& root() { return outer_ == nullptr ? *this : outer_->root(); }
  /// The number of `state` among those of its origin(), in the order in which the step runs them.
  int instance_of(const Fp8State& state);

  /// For modules: `state` ran a forward pass that trains, or a backward pass, in this region. in_backward: a caller
  /// runs the forward again (recomputation.h), the region may have ended.
  void ran_forward(const std::shared_ptr<Fp8State>& state, bool in_backward = false);
  void ran_backward(const std::shared_ptr<Fp8State>& state);
  /// The backward() that this thread is in calls finish_backward() when it ends; those inside of it don't.
  void finish_when_backward_ends();
  /// Reduces what was recorded over the ranks, and moves the scales that move at the end of a step. Called by the
  /// region itself.
  void finish_forward();
  void finish_backward();

  /// A backward() inside of a backward() (activation checkpointing): what runs in it is finished by the one around it.
  class InnerBackward {
   public:
    explicit InnerBackward(std::shared_ptr<Fp8Region> region);
    ~InnerBackward();
    InnerBackward& operator=(InnerBackward&&) = delete;

   private:
    std::shared_ptr<Fp8Region> root_;
  };

 private:
  struct Ran {
    std::weak_ptr<Fp8State> state;
    std::shared_ptr<runtime::distributed::ProcessGroup> group;
  };
  struct Taken {
    std::vector<std::shared_ptr<Fp8State>> states;
    std::vector<std::pair<std::shared_ptr<runtime::distributed::ProcessGroup>, std::vector<std::shared_ptr<Fp8State>>>>
        by_group;
  };
  static void add_once(std::vector<Ran>& to, const std::shared_ptr<Fp8State>& state,
                       const std::shared_ptr<runtime::distributed::ProcessGroup>& group);
  Taken take(std::vector<Ran>& from);
  void finish_after_backward();

  Fp8AutocastOptions options_;
  recipes::Recipe recipe_;
  std::shared_ptr<Fp8Region> outer_;
  std::shared_ptr<runtime::distributed::ProcessGroup> group_;
  int rank_ = 0;
  // Of the outermost region:
  std::mutex mutex_;
  std::vector<Ran> forward_, recomputed_, backward_;  ///< recomputed_: forward passes of a recomputation by others
  std::map<std::string, std::vector<const Fp8State*>> instances_;
  int inner_backwards_ = 0;
  std::weak_ptr<void> callback_;  ///< lives as long as the backward() that will call finish_backward()
};

/// The innermost region of this thread; null outside.
std::shared_ptr<Fp8Region> current_region();
/// A region is in force and enabled.
bool is_fp8_enabled();

/// A region of the thread it is made on, where it must end too. Regions that end out of order leave those inside of
/// them in force.
class fp8_autocast {
 public:
  /// Throws std::invalid_argument for a recipe that does not validate, c10::Error on a first-generation device (no fp8
  /// there).
  explicit fp8_autocast(Fp8AutocastOptions options);
  explicit fp8_autocast(bool enabled = true) : fp8_autocast(Fp8AutocastOptions{.enabled = enabled}) {}
  fp8_autocast(bool enabled, recipes::Recipe recipe)
      : fp8_autocast(Fp8AutocastOptions{.enabled = enabled, .recipe = std::move(recipe)}) {}
  ~fp8_autocast() noexcept(false);
  /// Ends the region now; a group's failure to reduce is thrown here, or by the destructor.
  void end();
  fp8_autocast& operator=(fp8_autocast&&) = delete;

 private:
  std::shared_ptr<Fp8Region> region_;
  int exceptions_;
  bool ended_ = false;
};

/// A listener, called on the thread of every outermost region that is enabled or calibrating: when it begins, and when
/// it ends without an exception. For the books of converted weights; the last one given counts.
struct RegionHooks {
  void (*begins)() = nullptr;
  /// trained: products ran a pass of training. What it returns, if not empty, the region's end throws, on all ranks
  /// that share its amaxes.
  std::string (*ends)(bool trained) = nullptr;
};
void on_outermost_regions(const RegionHooks& hooks);

/// Which passes measure amaxes, for code that makes its regions elsewhere. While it lives, outermost regions that begin
/// on this thread and say nothing of force_measurement measure always (manual, value), never (manual, not value), or as
/// the recipe's interval says (not manual).
class set_measurement_mode {
 public:
  explicit set_measurement_mode(bool manual, bool value = true);
  ~set_measurement_mode();
  set_measurement_mode& operator=(set_measurement_mode&&) = delete;

 private:
  std::optional<bool> previous_;
};

/// A captured region in force again on this thread (activation checkpointing); ends without moving any scale.
class RegionScope {
 public:
  explicit RegionScope(std::shared_ptr<Fp8Region> region);
  ~RegionScope();
  RegionScope& operator=(RegionScope&&) = delete;
};

/// f that runs in a region of its own each time: fp8_autocast as a decorator.
template <class F>
auto in_fp8_autocast(F f, Fp8AutocastOptions options = {}) {
  return [f = std::move(f), options = std::move(options)](auto&&... arguments) {
    const fp8_autocast region(options);
    return f(std::forward<decltype(arguments)>(arguments)...);
  };
}

}  // namespace fp8::te
