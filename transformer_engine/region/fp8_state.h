// SPDX-License-Identifier: Apache-2.0
// The memory of one fp8 product from step to step: scales, histories, and the fp8 weight between microbatches.
//
//   forward tensors   Linear: 0 input, 1 weight        attention: q, k, v, P
//   backward tensors  Linear: 0 gradient of the output attention: dO, dS
//
// Two timings, by the recipe's dialect:
//   habana   at the next forward (backward) entry: if the last one measured, new scales when the interval says so (a
//            step of new scales has begun since; passes need not run in the order of steps), then the ring's index
//            moves on.
//            HYBRID keeps a second set of scales for the E5M2 copies that the backward pass reads.
//   nvidia   at the end of the outermost region (forward) and when backward() ends: new scales, then the history rolls
// Where ranks share amaxes, habana's scales wait for the same two moments, at which the amaxes meet: a product that
// runs twice in between records the larger amax.
//
// Recipes without history (current, block, mxfp8) use the step counter alone, for stochastic rounding's seeds.
#pragma once

#include <atomic>

#include "fp8/recipes/tensor_meta.h"
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/transformer_engine/region/fp8_autocast.h"

// A matrix as fp8 products take it. Every operand is used twice: along its columns by one product and along its rows by
// another, and a scale must be constant along what is summed only as far as its block reaches.
//
//   y  [M, N] = x [M, K] . w [N, K]^T      x, w along columns (K)
//   dx [M, K] = g [M, N] . w [N, K]        g along columns (N), w along rows
//   dw [N, K] = g^T . x                    g, x along rows (M)

namespace fp8::te {

/// [rows, cols], twice; the two share codes where one cast serves both.
struct OperandPair {
  runtime::Fp8Tensor columns, rows;
};

/// The codes of a whole weight whose parts were cast where they lie, on several ranks, with one scale.
struct GatheredWeight {
  runtime::Fp8Tensor operand;
  float amax = 0.0f;     ///< of the whole
  bool delayed = false;  ///< the scale is one of a history: that of the pass that takes it
};

enum class Pass : std::uint8_t { forward, backward };

/// The scales of one pass, fixed when it began.
struct StepScales {
  std::vector<float> scale, scale_inv;  ///< per tensor of the pass
  std::vector<float> hybrid_scale,
      hybrid_scale_inv;   ///< of the E5M2 copies; empty: the backward pass reads the forward's codes
  bool record = false;    ///< amaxes go into the history
  bool trains = false;    ///< a pass of training
  bool reduce = false;    ///< the ranks' amaxes meet before scales are made of them
  std::int64_t step = 0;  ///< of this product, from 1
  int instance = 0;       ///< Fp8Region::instance_of()
};

/// Counts of what casts did to elements since the counters were read last.
struct CastStatistics {
  std::int64_t elements = 0, saturated = 0, underflowed = 0;  ///< counted only in regions with statistics
  /// stale: casts whose amax was beyond what the delayed scale covers, by more than rounding brings back to fp8_max
  std::int64_t casts = 0, stale = 0;
  float worst = 0.0f;  ///< largest amax * scale / fp8_max of those
  float amax = 0.0f;   ///< largest finite one of the forward passes' tensors, where amaxes are recorded
};

/// All of it as plain values: what extra state stores.
struct Fp8StateValues {
  recipes::TensorMeta forward, hybrid, backward;
  std::vector<float> amax_seen;  ///< largest amax of each forward tensor ever recorded
  std::int64_t step = 0;
  bool forward_due = false, backward_due = false;    ///< recorded, scales not moved yet
  std::int64_t forward_step = 0, backward_step = 0;  ///< which pass recorded last
  std::string recipe;                                ///< describe() of the one in use; empty before the first pass
};

class FirstRuns;

class Fp8State : public std::enable_shared_from_this<Fp8State> {
 public:
  Fp8State(std::string name, int forward_tensors, int backward_tensors);
  ~Fp8State();

  /// In messages and files. fp8_states() renames; not while passes run.
  const std::string& name() const { return name_; }
  void rename(std::string name);
  /// The name it was made with: seeds of stochastic rounding come from it (and from the number among products of one
  /// such name) and ranks compare it, so that looking at a model's state changes nothing.
  const std::string& origin() const { return origin_; }
  int forward_tensors() const { return forward_tensors_; }
  int backward_tensors() const { return backward_tensors_; }

  /// A recipe of this product's own, whatever the region's; none again.
  void set_recipe(std::optional<recipes::Recipe> recipe);
  std::optional<recipes::Recipe> own_recipe() const;
  recipes::Recipe recipe_in(const Fp8Region& region) const;
  /// For te modules: the product stays in high precision inside regions too.
  void keep_high_precision(bool keep) { high_precision_ = keep; }
  bool keeps_high_precision() const { return high_precision_; }

  /// Starts a forward pass in `region`. training: amaxes may be recorded; else the scales are those that such a pass
  /// would take, and nothing moves. Inside a recomputation of activation checkpointing the scales of the first run come
  /// back, and amaxes are recorded once.
  StepScales begin_forward(Fp8Region& region, bool training);
  /// What begin_forward(region, false) says of scales, where a pass begins later: nothing is noted.
  StepScales next_scales(Fp8Region& region);
  /// Starts the backward pass of a forward pass that found `forward`; the region's recipe is the captured one.
  StepScales begin_backward(Fp8Region& region, const StepScales& forward);

  /// The two in two, for a pass that is called now and runs later (lazy mode): what the region has to know at the call,
  /// and the scales when it runs. Of a pass outside of recomputations, with gradients.
  int call_forward(Fp8Region& region, bool training);
  StepScales forward_scales(const Fp8Region& region, const recipes::Recipe& recipe, bool training, int instance);
  void call_backward(Fp8Region& region);
  StepScales backward_scales(const Fp8Region& region, const StepScales& forward);

  /// The largest magnitude (of the unscaled tensor) that a cast of tensor `index` found. format_max: of its format.
  void record(Pass pass, const StepScales& scales, int index, float amax, float format_max);
  /// An input's amax, where its recipe has no history: the largest is kept for export.
  void record_input(const StepScales& scales, int index, float amax);
  void count(std::int64_t elements, std::int64_t saturated, std::int64_t underflowed);

  /// For regions: what is recorded and not used yet, appended; and back after the reduction over ranks (returns the
  /// next value).
  void copy_recorded(Pass pass, std::vector<float>& to) const;
  const float* replace_recorded(Pass pass, const float* from);
  void end_of_step(Pass pass);

  CastStatistics take_statistics();

  /// Every forward tensor's scale as if `amax` (one per tensor, of the unscaled tensor) had been measured in every step
  /// of the history.
  void seed(const std::vector<float>& amax, const recipes::Recipe& recipe);

  Fp8StateValues values() const;
  /// Throws c10::Error naming the product and both sizes if the numbers of tensors differ. Another history length is
  /// resized at the next pass.
  void set_values(Fp8StateValues values);

  /// Of a copy of a weight: until it trains itself, its scales are `source`'s at each pass.
  void follow(const std::shared_ptr<Fp8State>& source);
  bool follows() const;
  /// How many passes of training there were (0 while it follows); whether the scales are those it was made with, where
  /// a recipe moves them.
  std::int64_t step() const;
  /// How many were called on this object, some of which may not have run yet.
  std::int64_t calls() const { return calls_; }
  bool never_moved() const;

  /// For recomputations by others than te::checkpoint().
  FirstRuns& first_runs() { return *first_runs_; }

  /// The weight's cast, kept between microbatches.
  std::optional<OperandPair> kept() const;
  void keep(OperandPair weight);

  /// What products take in place of a cast of their weight; none again.
  std::optional<GatheredWeight> gathered() const;
  void set_gathered(std::optional<GatheredWeight> weight);

 private:
  Fp8StateValues own_values() const;
  StepScales scales_of_pass(const Fp8Region& region, const recipes::Recipe& recipe, bool training);
  void adopt(const recipes::Recipe& recipe);
  void move_scales(Pass pass, bool due);
  void move_forward(recipes::TensorMeta& forward, recipes::TensorMeta& hybrid, bool due) const;
  bool shares_amaxes(const Fp8Region& region) const;
  void keep_largest(int index, float amax);
  const recipes::DelayedScaling* delayed() const {
    return in_use_.has_value() ? std::get_if<recipes::DelayedScaling>(&*in_use_) : nullptr;
  }

  std::string name_;
  const std::string origin_;
  int forward_tensors_, backward_tensors_;
  std::atomic<bool> high_precision_ = false;
  std::atomic<std::int64_t> calls_ = 0;
  mutable std::mutex mutex_;
  std::optional<recipes::Recipe> own_, in_use_;
  recipes::Dialect dialect_ = recipes::Dialect::gaudi3;
  Fp8StateValues values_;
  bool forward_alone_ = false, backward_alone_ = false;  ///< records have not met the other ranks' yet
  bool warned_of_change_ = false;
  std::optional<OperandPair> kept_;
  std::optional<GatheredWeight> gathered_;
  CastStatistics statistics_;
  std::shared_ptr<Fp8State> source_;  ///< null: follows none
  const std::unique_ptr<FirstRuns> first_runs_;
};

}  // namespace fp8::te
