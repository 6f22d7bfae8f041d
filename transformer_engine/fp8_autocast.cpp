// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/fp8_autocast.h"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "fp8/runtime/device/device.h"
#include "fp8/transformer_engine/fp8_state.h"

namespace fp8::te {
namespace {

thread_local std::shared_ptr<Fp8Region> t_region;

using States = std::vector<std::shared_ptr<Fp8State>>;

States take(std::vector<std::weak_ptr<Fp8State>>& from) {
  States states;
  for (const auto& weak : from) {
    if (auto state = weak.lock()) states.push_back(std::move(state));
  }
  from.clear();
  return states;
}

void add_once(std::vector<std::weak_ptr<Fp8State>>& to, const std::shared_ptr<Fp8State>& state) {
  for (const auto& known : to) {
    if (!known.owner_before(state) && !state.owner_before(known)) return;
  }
  to.push_back(state);
}

/// All ranks' amaxes in one message, in the order in which the modules ran.
void reduce(const States& states, Pass pass, runtime::distributed::ProcessGroup* group) {
  if (group == nullptr) return;
  std::vector<float> all;
  for (const auto& state : states) state->copy_recorded(pass, all);
  group->all_reduce_max(all.data(), all.size());
  const float* next = all.data();
  for (const auto& state : states) next = state->replace_recorded(pass, next);
}

}  // namespace

Fp8Region::Fp8Region(Fp8AutocastOptions options, std::shared_ptr<Fp8Region> outer) : options_(std::move(options)), outer_(std::move(outer)) {
  if (options_.recipe.has_value()) {
    recipes::validate(*options_.recipe);
    recipe_ = *options_.recipe;
  } else if (outer_ != nullptr) {
    recipe_ = outer_->recipe_;
  }
  if (outer_ == nullptr) return;
  if (options_.group == nullptr) options_.group = outer_->options_.group;
  if (!options_.is_first_microbatch.has_value()) options_.is_first_microbatch = outer_->options_.is_first_microbatch;
  if (options_.seed == 0) options_.seed = outer_->options_.seed;
}

Fp8Region& Fp8Region::root() { return outer_ == nullptr ? *this : outer_->root(); }

bool Fp8Region::ran_forward(const std::shared_ptr<Fp8State>& state) {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  add_once(r.forward_, state);
  return !std::exchange(r.any_forward_, true);
}

void Fp8Region::ran_backward(const std::shared_ptr<Fp8State>& state) {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  add_once(r.backward_, state);
}

void Fp8Region::finish_backward() {
  Fp8Region& r = root();
  States states;
  {
    const std::lock_guard<std::mutex> lock(r.mutex_);
    states = take(r.backward_);
  }
  reduce(states, Pass::backward, r.options_.group.get());
  for (const auto& state : states) state->end_of_step(Pass::backward);
}

void Fp8Region::finish_forward() {
  Fp8Region& r = root();
  States states;
  {
    const std::lock_guard<std::mutex> lock(r.mutex_);
    states = take(r.forward_);
  }
  reduce(states, Pass::forward, r.options_.group.get());
  for (const auto& state : states) state->end_of_step(Pass::forward);
}

const std::shared_ptr<Fp8Region>& current_region() { return t_region; }
bool is_fp8_enabled() { return t_region != nullptr && t_region->enabled(); }

fp8_autocast::fp8_autocast(Fp8AutocastOptions options) : previous_(t_region), exceptions_(std::uncaught_exceptions()) {
  if (options.enabled) (void)runtime::device_dialect("fp8_autocast");
  region_ = std::make_shared<Fp8Region>(std::move(options), t_region);
  t_region = region_;
}

fp8_autocast::~fp8_autocast() noexcept(false) { end(); }

void fp8_autocast::end() {
  if (std::exchange(ended_, true)) return;
  t_region = previous_;
  if (previous_ == nullptr && std::uncaught_exceptions() == exceptions_) region_->finish_forward();
}

RegionScope::RegionScope(std::shared_ptr<Fp8Region> region) : previous_(std::exchange(t_region, std::move(region))) {}
RegionScope::~RegionScope() { t_region = std::move(previous_); }

}  // namespace fp8::te
