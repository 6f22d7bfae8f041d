// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/region/fp8_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

using recipes::DelayedScaling, recipes::RecipeDialect, recipes::RecipeFormat, recipes::TensorMeta;

/// The settings that must not change while a history is of use.
std::string key_of(const recipes::Recipe& recipe) {
  std::string key = recipes::name_of(recipe);
  if (const auto* d = std::get_if<DelayedScaling>(&recipe)) {
    key += d->dialect == RecipeDialect::habana ? " habana " : " nvidia ";
  } else {
    key += " ";
  }
  return key + recipes::name_of(recipes::format_of(recipe));
}

/// The least value that rounding does not bring back to format_max: half a step above it. Below that saturation changes
/// no code.
float least_beyond(float format_max) {
  const int mantissa_bits = format_max > 448.0f ? 2 : 3;  // E5M2, E4M3
  return format_max + std::ldexp(0.5f, std::ilogb(format_max) - mantissa_bits);
}

bool keeps_hybrid_copies(const DelayedScaling& d) {
  return d.dialect == RecipeDialect::habana && d.fp8_format == RecipeFormat::HYBRID;
}

int current_row(const TensorMeta& meta, const DelayedScaling& d) {
  return d.dialect == RecipeDialect::habana ? meta.amax_history_index : 0;
}

std::vector<float> to_vector(const Eigen::ArrayXf& a) { return {a.data(), a.data() + a.size()}; }

/// The second run of activation checkpointing: the first one recorded the same casts. In a second run by others the
/// first one counted them only.
bool in_second_run(const Fp8State& state, bool counted = false) {
  const ReplayLog* log = current_replay_log();
  if (log != nullptr && log->replaying()) return true;
  const FirstRuns::Found* first = first_run_of(state);
  return first != nullptr && (counted || first->recorded);
}

void fit_history(TensorMeta& meta, const DelayedScaling& d) {
  if (meta.amax_history.rows() != d.amax_history_len) recipes::resize_history(meta, d, d.amax_history_len);
}

/// A step in which new scales are due, of those after `recorded` up to `now`. One pass per step: updates_scale(now). A
/// product that runs twice before its backward passes has them in reverse order: the step of new scales comes first,
/// the one that measures after it.
bool update_since(const DelayedScaling& d, std::int64_t recorded, std::int64_t now) {
  if (d.dialect == RecipeDialect::nvidia || d.interval <= 1) return true;
  for (std::int64_t step = std::max(recorded + 1, now - d.interval + 1); step <= now; ++step)
    if (recipes::updates_scale(d, step)) return true;
  return false;
}

}  // namespace

Fp8State::Fp8State(std::string name, int forward_tensors, int backward_tensors)
    : name_(std::move(name)),
      origin_(name_),
      forward_tensors_(forward_tensors),
      backward_tensors_(backward_tensors),
      first_runs_(std::make_unique<FirstRuns>()) {
  values_.amax_seen.assign(static_cast<std::size_t>(forward_tensors), 0.0f);
}
Fp8State::~Fp8State() = default;

void Fp8State::rename(std::string name) {
  runtime::finish_work();
  name_ = std::move(name);
}

void Fp8State::set_recipe(std::optional<recipes::Recipe> recipe) {
  if (recipe.has_value()) recipes::validate(*recipe);
  const std::lock_guard<std::mutex> lock(mutex_);
  own_ = std::move(recipe);
}

std::optional<recipes::Recipe> Fp8State::own_recipe() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return own_;
}

recipes::Recipe Fp8State::recipe_in(const Fp8Region& region) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return own_.has_value() ? *own_ : region.recipe();
}

void Fp8State::adopt(const recipes::Recipe& recipe) {
  const std::string key = key_of(recipe);
  in_use_ = recipe;
  const auto* d = delayed();
  if (values_.recipe != key) {
    if (!values_.recipe.empty() && !std::exchange(warned_of_change_, true))
      TORCH_WARN("[fp8_autocast] the recipe of '", name_, "' changed from ", values_.recipe, " to ", key,
                 ": its scales start anew");
    const int history = d != nullptr ? d->amax_history_len : 1;
    values_.forward = TensorMeta(forward_tensors_, history);
    values_.backward = TensorMeta(backward_tensors_, history);
    values_.hybrid = d != nullptr && keeps_hybrid_copies(*d) ? TensorMeta(forward_tensors_, history) : TensorMeta();
    values_.forward_due = values_.backward_due = forward_alone_ = backward_alone_ = false;
    values_.recipe = key;
    kept_.reset();
  } else if (d != nullptr) {
    fit_history(values_.forward, *d);
    fit_history(values_.backward, *d);
    if (keeps_hybrid_copies(*d)) fit_history(values_.hybrid, *d);
  }
}

void Fp8State::move_forward(TensorMeta& forward, TensorMeta& hybrid, bool due) const {
  const DelayedScaling& d = *delayed();
  const auto move = [&](TensorMeta& meta, recipes::Format format) {
    if (due) recipes::update_scales(meta, d, recipes::fp8_max(format, dialect_));
    recipes::finish_step(meta, d);
  };
  move(forward, recipes::forward_format(d.fp8_format));
  if (keeps_hybrid_copies(d)) move(hybrid, recipes::backward_format(d.fp8_format));
}

void Fp8State::move_scales(Pass pass, bool due) {
  const DelayedScaling& d = *delayed();
  if (pass == Pass::forward) {
    move_forward(values_.forward, values_.hybrid, due);
    values_.forward_due = false;
    return;
  }
  if (due)
    recipes::update_scales(values_.backward, d, recipes::fp8_max(recipes::backward_format(d.fp8_format), dialect_));
  recipes::finish_step(values_.backward, d);
  values_.backward_due = false;
}

StepScales Fp8State::scales_of_pass(const Fp8Region& region, const recipes::Recipe& recipe, bool training) {
  StepScales s;
  const std::lock_guard<std::mutex> lock(mutex_);
  dialect_ = runtime::device_dialect("fp8_autocast");
  if (source_ != nullptr) values_ = source_->own_values();
  if (training) source_ = nullptr;
  adopt(recipe);
  s.step = values_.step + 1;
  const auto* d = delayed();
  const auto& forced = region.options().force_measurement;
  s.trains = training;
  TensorMeta moved, moved_hybrid;  // where nothing may move
  const TensorMeta *forward = &values_.forward, *hybrid = &values_.hybrid;
  if (d != nullptr && d->dialect == RecipeDialect::habana && values_.forward_due &&
      !(forward_alone_ && shares_amaxes(region))) {
    const bool due = forced.has_value() || update_since(*d, values_.forward_step, s.step);
    if (training) {
      move_scales(Pass::forward, due);
    } else {
      moved = values_.forward, moved_hybrid = values_.hybrid;
      move_forward(moved, moved_hybrid, due);
      forward = &moved, hybrid = &moved_hybrid;
    }
  }
  if (training) {
    values_.step = s.step;
    s.record = d != nullptr && forced.value_or(recipes::measures_amax(*d, s.step));
    if (s.record) values_.forward_step = s.step;
    s.reduce = s.record && shares_amaxes(region);
  }
  s.scale = to_vector(forward->scale);
  s.scale_inv = to_vector(forward->scale_inv);
  if (d != nullptr && keeps_hybrid_copies(*d)) {
    s.hybrid_scale = to_vector(hybrid->scale);
    s.hybrid_scale_inv = to_vector(hybrid->scale_inv);
  }
  return s;
}

StepScales Fp8State::next_scales(Fp8Region& region) {
  runtime::finish_work();
  return scales_of_pass(region, recipe_in(region), false);
}

StepScales Fp8State::begin_forward(Fp8Region& region, bool training) {
  runtime::finish_work();
  const runtime::ModuleScope module(name_);
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::begin_forward"});
  ReplayLog* log = current_replay_log();
  const bool without_grad = !at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
  const auto note = [&](const StepScales& s, bool recorded) {
    if (without_grad && region.enabled())
      first_runs_->note(std::make_shared<FirstRuns::Found>(
          FirstRuns::Found{region.shared_from_this(), s, recorded, runtime::autocast::region_dtype()}));
  };
  if (log != nullptr) {
    if (auto given = log->given(*this)) {
      note(*given, /*recorded=*/true);
      return std::move(*given);
    }
  }
  const FirstRuns::Found* first = first_run_of(*this);
  if (first != nullptr && (without_grad || first->recorded)) {
    note(first->scales, first->recorded);
    region.finish_when_backward_ends();
    return first->scales;
  }
  const int instance = first != nullptr ? first->scales.instance : region.instance_of(*this);
  StepScales s = scales_of_pass(region, recipe_in(region), training);
  s.instance = instance;
  if (first != nullptr) {  // what the first run multiplied with, should scales have moved since
    s.scale = first->scales.scale, s.scale_inv = first->scales.scale_inv;
    s.hybrid_scale = first->scales.hybrid_scale, s.hybrid_scale_inv = first->scales.hybrid_scale_inv;
  }
  if (training) {
    ++calls_;
    region.ran_forward(shared_from_this(), /*in_backward=*/first != nullptr);
    trains_as(*this, s);
  }
  if (log != nullptr) log->remember(*this, s);
  note(s, /*recorded=*/training);
  return s;
}

StepScales Fp8State::begin_backward(Fp8Region& region, const StepScales& forward) {
  runtime::finish_work();
  StepScales s = backward_scales(region, forward);
  call_backward(region);
  return s;
}

int Fp8State::call_forward(Fp8Region& region, bool training) {
  if (training) {
    ++calls_;
    region.ran_forward(shared_from_this());
  }
  return region.instance_of(*this);
}

StepScales Fp8State::forward_scales(const Fp8Region& region, const recipes::Recipe& recipe, bool training,
                                    int instance) {
  const runtime::ModuleScope module(name_);
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::begin_forward"});
  StepScales s = scales_of_pass(region, recipe, training);
  s.instance = instance;
  return s;
}

void Fp8State::call_backward(Fp8Region& region) { region.ran_backward(shared_from_this()); }

StepScales Fp8State::backward_scales(const Fp8Region& region, const StepScales& forward) {
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::begin_backward"});
  StepScales s;
  s.step = forward.step;
  s.instance = forward.instance;
  s.record = forward.record;
  s.reduce = forward.reduce;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* d = delayed();
    // A state from before its first step may have been loaded since the forward pass.
    if (values_.backward.tensors() != backward_tensors_) values_.backward = TensorMeta(backward_tensors_);
    if (d != nullptr && d->dialect == RecipeDialect::habana && values_.backward_due &&
        !(backward_alone_ && shares_amaxes(region))) {
      move_scales(Pass::backward,
                  region.options().force_measurement.has_value() || update_since(*d, values_.backward_step, s.step));
    }
    if (s.record) values_.backward_step = s.step;
    s.scale = to_vector(values_.backward.scale);
    s.scale_inv = to_vector(values_.backward.scale_inv);
  }
  return s;
}

void Fp8State::record(Pass pass, const StepScales& scales, int index, float amax, float format_max) {
  if (!scales.record || in_second_run(*this)) return;
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::record_amax"});
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* d = delayed();
  if (d == nullptr) return;
  ++statistics_.casts;
  const float scaled = amax * scales.scale[static_cast<std::size_t>(index)], reached = scaled / format_max;
  if (scales.step > 1 && scaled >= least_beyond(format_max)) {
    ++statistics_.stale;
    statistics_.worst = std::max(statistics_.worst, reached);
  }
  (pass == Pass::forward ? values_.forward_due : values_.backward_due) = true;
  if (scales.reduce) (pass == Pass::forward ? forward_alone_ : backward_alone_) = true;
  // A NaN or an infinity says nothing about the next step, and would stay in the history for its whole length.
  if (!std::isfinite(amax)) return;
  recipes::record_amax(pass == Pass::forward ? values_.forward : values_.backward, *d, index, amax);
  if (pass == Pass::backward) return;
  if (keeps_hybrid_copies(*d)) recipes::record_amax(values_.hybrid, *d, index, amax);
  keep_largest(index, amax);
}

void Fp8State::record_input(const StepScales& scales, int index, float amax) {
  if (!scales.trains || in_second_run(*this) || !std::isfinite(amax)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  keep_largest(index, amax);
}

void Fp8State::keep_largest(int index, float amax) {
  auto& seen = values_.amax_seen[static_cast<std::size_t>(index)];
  seen = std::max(seen, amax);
  statistics_.amax = std::max(statistics_.amax, amax);
}

void Fp8State::count(std::int64_t elements, std::int64_t saturated, std::int64_t underflowed) {
  if (in_second_run(*this, /*counted=*/true)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_.elements += elements;
  statistics_.saturated += saturated;
  statistics_.underflowed += underflowed;
}

void Fp8State::copy_recorded(Pass pass, std::vector<float>& to) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* d = delayed();
  if (d == nullptr || !d->reduce_amax) return;
  const TensorMeta& meta = pass == Pass::forward ? values_.forward : values_.backward;
  for (Eigen::Index i = 0; i < meta.amax_history.cols(); ++i) to.push_back(meta.amax_history(current_row(meta, *d), i));
}

const float* Fp8State::replace_recorded(Pass pass, const float* from) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* d = delayed();
  if (d == nullptr || !d->reduce_amax) return from;
  (pass == Pass::forward ? forward_alone_ : backward_alone_) = false;
  TensorMeta& meta = pass == Pass::forward ? values_.forward : values_.backward;
  const bool hybrid = pass == Pass::forward && keeps_hybrid_copies(*d);
  for (Eigen::Index i = 0; i < meta.amax_history.cols(); ++i, ++from) {
    meta.amax_history(current_row(meta, *d), i) = *from;
    if (hybrid) values_.hybrid.amax_history(current_row(values_.hybrid, *d), i) = *from;
  }
  return from;
}

void Fp8State::end_of_step(Pass pass) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* d = delayed();
  if (d == nullptr || d->dialect != RecipeDialect::nvidia) return;
  if (pass == Pass::forward ? values_.forward_due : values_.backward_due) move_scales(pass, true);
}

bool Fp8State::shares_amaxes(const Fp8Region& region) const {
  const auto* d = delayed();
  return d != nullptr && d->reduce_amax && region.group() != nullptr;
}

std::optional<OperandPair> Fp8State::kept() const {
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_;
}

void Fp8State::keep(OperandPair weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_ = std::move(weight);
}

std::optional<GatheredWeight> Fp8State::gathered() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gathered_;
}

void Fp8State::set_gathered(std::optional<GatheredWeight> weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  gathered_ = std::move(weight);
}

CastStatistics Fp8State::take_statistics() {
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(statistics_, {});
}

void Fp8State::seed(const std::vector<float>& amax, const recipes::Recipe& recipe) {
  TORCH_CHECK(amax.size() == static_cast<std::size_t>(forward_tensors_), "[seed] '", name_, "': expected ",
              forward_tensors_, " amaxes, got ", amax.size());
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  dialect_ = runtime::device_dialect("fp8_autocast");
  source_ = nullptr;
  adopt(recipe);
  const auto* d = delayed();
  if (d == nullptr) return;  // the other recipes look at the tensor itself
  const auto fill = [&](TensorMeta& meta, float max) {
    for (Eigen::Index i = 0; i < meta.amax_history.cols(); ++i)
      meta.amax_history.col(i).setConstant(amax[static_cast<std::size_t>(i)]);
    recipes::update_scales(meta, *d, max);
    if (d->dialect == RecipeDialect::nvidia) recipes::finish_step(meta, *d);  // row 0 is the coming step's
  };
  fill(values_.forward, recipes::fp8_max(recipes::forward_format(d->fp8_format), dialect_));
  if (keeps_hybrid_copies(*d))
    fill(values_.hybrid, recipes::fp8_max(recipes::backward_format(d->fp8_format), dialect_));
  for (std::size_t i = 0; i < amax.size(); ++i) values_.amax_seen[i] = std::max(values_.amax_seen[i], amax[i]);
}

void Fp8State::follow(const std::shared_ptr<Fp8State>& source) {
  runtime::finish_work();
  std::shared_ptr<Fp8State> root = source;
  {
    const std::lock_guard<std::mutex> lock(source->mutex_);
    if (source->source_ != nullptr) root = source->source_;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  source_ = std::move(root);
}

bool Fp8State::follows() const {
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  return source_ != nullptr;
}

std::int64_t Fp8State::step() const {
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  return source_ != nullptr ? 0 : values_.step;
}

bool Fp8State::never_moved() const {
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  return delayed() != nullptr && values_.step == 0 && (values_.forward.scale == 1.0f).all();
}

Fp8StateValues Fp8State::values() const {
  runtime::finish_work();
  return own_values();
}

Fp8StateValues Fp8State::own_values() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return source_ != nullptr ? source_->own_values() : values_;
}

void Fp8State::set_values(Fp8StateValues values) {
  TORCH_CHECK(
      values.recipe.empty() ||
          (values.forward.scale.size() == forward_tensors_ && values.backward.scale.size() == backward_tensors_),
      "[set_extra_state] '", name_, "': expected the state of ", forward_tensors_, " forward and ", backward_tensors_,
      " backward tensors, got ", values.forward.scale.size(), " and ", values.backward.scale.size());
  const auto& h = values.hybrid;
  const bool needs_hybrid = values.recipe == key_of(DelayedScaling{.fp8_format = RecipeFormat::HYBRID});
  TORCH_CHECK((h.tensors() == 0 && !needs_hybrid) ||
                  (h.tensors() == forward_tensors_ && h.history() == values.forward.history() &&
                   h.amax_history_index == values.forward.amax_history_index),
              "[set_extra_state] '", name_, "': hybrid: expected ", forward_tensors_, " tensors, a history of ",
              values.forward.history(), " and index ", values.forward.amax_history_index, ", as forward has, got ",
              h.tensors(), ", ", h.history(), " and ", h.amax_history_index);
  for (const float a : values.amax_seen)
    TORCH_CHECK(std::isfinite(a) && a >= 0.0f, "[set_extra_state] '", name_, "': amax_seen: found ", a,
                ", allowed: finite values >= 0");
  runtime::finish_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  values_ = std::move(values);
  source_ = nullptr;
  forward_alone_ = backward_alone_ = false;
  values_.amax_seen.resize(static_cast<std::size_t>(forward_tensors_), 0.0f);
  in_use_.reset();  // the next forward pass says which recipe these are of
  kept_.reset();
}

}  // namespace fp8::te
