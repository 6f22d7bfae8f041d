// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/region/fp8_autocast.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <exception>
#include <iterator>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/graph/graphed_call.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {
namespace {

/// The regions in force, innermost last, and the guards that will take them off again.
struct InForce {
  const void* guard;
  std::shared_ptr<Fp8Region> region;
};
thread_local std::vector<InForce> t_regions;
thread_local std::optional<bool> t_measurement;
std::atomic<void (*)()> g_begins{nullptr};
std::atomic<std::string (*)(bool)> g_ends{nullptr};

void take_off(const void* guard) {
  const auto last =
      std::find_if(t_regions.rbegin(), t_regions.rend(), [&](const InForce& r) { return r.guard == guard; });
  if (last != t_regions.rend()) t_regions.erase(std::next(last).base());
}

using runtime::distributed::ProcessGroup;
using States = std::vector<std::shared_ptr<Fp8State>>;

/// The names of the products as a number that f32 holds exactly.
float names_number(const States& states) {
  std::uint32_t h = 2166136261u;
  for (const auto& state : states)
    for (const char c : state->origin() + '\n') h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<float>((h ^ (h >> 24)) & 0xFFFFFF);
}

/// The first time that ranks of a group come to share amaxes: what is wrong where some ran other products than others,
/// or none, and would wait in other messages; "": nothing is.
std::string who_ran_otherwise(const std::string& ran, ProcessGroup& group) {
  const std::vector<std::string> all = group.introduce(ran);
  std::string text;
  bool differ = false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    differ = differ || (!all[rank].empty() && all[rank] != ran);
    text += io::message("{}rank {} {}", rank > 0 ? ", " : "", rank, all[rank].empty() ? "ran no region" : all[rank]);
  }
  if (!differ) return "";
  return io::message(
      "[fp8_autocast] rank {} of {}: the ranks ran different products in fp8: {}; with reduce_amax all run the same "
      "ones, of models that were converted on each rank",
      group.rank(), group.size(), text);
}

bool shares_amaxes(const recipes::Recipe& recipe) {
  const auto* delayed = std::get_if<recipes::DelayedScaling>(&recipe);
  return delayed != nullptr && delayed->reduce_amax;
}

/// All ranks' amaxes in one message, in the order in which the modules ran: {amax, amax, ..., fails, names, -names}.
/// fails: this rank throws after it; the others do here.
void reduce(const States& states, Pass pass, ProcessGroup& group, bool fails = false) {
  std::vector<float> all;
  for (const auto& state : states) state->copy_recorded(pass, all);
  if (all.empty()) return;
  const std::string differ = who_ran_otherwise(io::message("ran {}, '{}' to '{}', with {} amaxes", states.size(),
                                                           states.front()->name(), states.back()->name(), all.size()),
                                               group);
  if (fails && !differ.empty()) return;
  TORCH_CHECK(differ.empty(), differ);
  const float names = names_number(states);
  all.push_back(fails ? 1.0f : 0.0f);
  all.push_back(names);
  all.push_back(-names);
  group.all_reduce_max(all.data(), all.size());
  TORCH_CHECK(all[all.size() - 2] == -all.back(), "[fp8_autocast] rank ", group.rank(), " of ", group.size(),
              ": the ranks ran different products ", pass == Pass::forward ? "forward" : "backward", ": this one ran ",
              states.size(), ", '", states.front()->name(), "' to '", states.back()->name(),
              "'; with reduce_amax all run the same ones in the same order");
  TORCH_CHECK(fails || all[all.size() - 3] == 0.0f, "[fp8_autocast] rank ", group.rank(), " of ", group.size(),
              ": another rank ends this region with an error, which names converted weights that did not train in fp8");
  const float* next = all.data();
  for (const auto& state : states) next = state->replace_recorded(pass, next);
}

bool runs_hooks(const Fp8Region& region) {
  return region.outermost() && (region.enabled() || region.options().calibrating);
}

/// Of a process that data parallel training started without a group for amaxes. Variables that name no rank say nothing
/// here.
int rank_of_process() {
  static const int rank = [] {
    try {
      const auto launched = io::launched();
      return launched.has_value() ? launched->rank : 0;
    } catch (const io::Error&) {
      return 0;
    }
  }();
  return rank;
}

/// Scales move behind what was called before.
void end_of_step(States states, Pass pass) {
  if (states.empty()) return;
  runtime::run_in_order([states = std::move(states), pass] {
    for (const auto& state : states) state->end_of_step(pass);
  });
}

/// As a node of a recording where there is one.
bool recorded(const char* name, const std::function<void()>& finish) {
  auto* recorder = runtime::Recorder::current();
  if (recorder == nullptr) return false;
  torch::jit::Stack none;
  recorder->call(name, [finish](torch::jit::Stack&) { finish(); }, none);
  return true;
}

void add_to_key(std::string& key) {
  const auto region = current_region();
  if (region == nullptr) return;
  const auto& o = region->options();
  key += recipes::describe(region->recipe());
  for (const bool flag :
       {o.enabled, o.calibrating, o.force_measurement.has_value(), o.force_measurement.value_or(false),
        o.is_first_microbatch.has_value(), o.is_first_microbatch.value_or(false), o.statistics})
    key += flag ? '1' : '0';
}

std::function<std::shared_ptr<void>()> inner_backward() {
  return [region = current_region()] { return std::make_shared<Fp8Region::InnerBackward>(region); };
}

[[maybe_unused]] const bool hooked = (runtime::set_graph_hooks({&add_to_key, &inner_backward}), true);

}  // namespace

Fp8Region::Fp8Region(Fp8AutocastOptions options, std::shared_ptr<Fp8Region> outer)
    : options_(std::move(options)), outer_(std::move(outer)) {
  if (options_.recipe.has_value()) {
    recipes::validate(*options_.recipe);
    recipe_ = *options_.recipe;
  } else if (outer_ != nullptr) {
    recipe_ = outer_->recipe_;
  }
  if (options_.group == nullptr && outer_ != nullptr) options_.group = outer_->options_.group;
  if (options_.group != nullptr && options_.group->size() > 1) group_ = options_.group;
  rank_ = options_.group != nullptr ? options_.group->world_rank()
          : outer_ != nullptr       ? outer_->rank_
                                    : rank_of_process();
  if (outer_ == nullptr) {
    if (!options_.force_measurement.has_value()) options_.force_measurement = t_measurement;
    if (const auto begins = g_begins.load(); begins != nullptr && runs_hooks(*this)) begins();
    return;
  }
  if (!options_.is_first_microbatch.has_value()) options_.is_first_microbatch = outer_->options_.is_first_microbatch;
  if (!options_.force_measurement.has_value()) options_.force_measurement = outer_->options_.force_measurement;
  if (options_.seed == 0) options_.seed = outer_->options_.seed;
  options_.statistics = options_.statistics || outer_->options_.statistics;
}

void Fp8Region::add_once(std::vector<Ran>& to, const std::shared_ptr<Fp8State>& state,
                         const std::shared_ptr<ProcessGroup>& group) {
  for (const auto& known : to)
    if (!known.state.owner_before(state) && !state.owner_before(known.state)) return;
  to.push_back({state, group});
}

Fp8Region::Taken Fp8Region::take(std::vector<Ran>& from) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Taken taken;
  for (const auto& ran : from) {
    auto state = ran.state.lock();
    if (state == nullptr) continue;
    taken.states.push_back(state);
    if (ran.group == nullptr) continue;
    auto same = std::ranges::find_if(taken.by_group, [&](const auto& g) { return g.first == ran.group; });
    if (same == taken.by_group.end()) same = taken.by_group.insert(same, {ran.group, {}});
    same->second.push_back(std::move(state));
  }
  from.clear();
  return taken;
}

int Fp8Region::instance_of(const Fp8State& state) {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  auto& known = r.instances_[state.origin()];
  const auto found = std::ranges::find(known, &state);
  const auto instance = static_cast<int>(found - known.begin());
  if (found == known.end()) known.push_back(&state);
  return instance;
}

void Fp8Region::ran_forward(const std::shared_ptr<Fp8State>& state, bool in_backward) {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  add_once(in_backward ? r.recomputed_ : r.forward_, state, group_);
  if (in_backward) r.finish_after_backward();
}

void Fp8Region::ran_backward(const std::shared_ptr<Fp8State>& state) {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  add_once(r.backward_, state, group_);
  r.finish_after_backward();
}

/// Once per backward(), whichever products take part in it and whatever backward() runs inside of it. Holds the lock. A
/// backward() that fails drops its callbacks: the next one has its own.
void Fp8Region::finish_after_backward() {
  if (torch::autograd::get_current_graph_task_id() < 0 || inner_backwards_ > 0 || !callback_.expired()) return;
  auto alive = std::make_shared<bool>(true);
  callback_ = alive;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [region = shared_from_this(), alive = std::move(alive)] { region->finish_backward(); });
}

void Fp8Region::finish_when_backward_ends() {
  Fp8Region& r = root();
  const std::lock_guard<std::mutex> lock(r.mutex_);
  r.finish_after_backward();
}

Fp8Region::InnerBackward::InnerBackward(std::shared_ptr<Fp8Region> region) {
  if (region == nullptr) return;
  root_ = region->root().shared_from_this();
  root_->finish_when_backward_ends();
  const std::lock_guard<std::mutex> lock(root_->mutex_);
  ++root_->inner_backwards_;
}
Fp8Region::InnerBackward::~InnerBackward() {
  if (root_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(root_->mutex_);
  --root_->inner_backwards_;
}

void Fp8Region::finish_forward() {
  if (recorded("te::finish_forward", [self = shared_from_this()] { self->finish_forward(); })) return;
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::finish_forward"});
  Fp8Region& r = root();
  const Taken taken = r.take(r.forward_);
  const auto ends = runs_hooks(r) ? g_ends.load() : nullptr;
  const std::string failure = ends == nullptr ? std::string() : ends(!taken.states.empty());
  if (!taken.by_group.empty()) runtime::finish_work();
  for (const auto& [group, states] : taken.by_group) reduce(states, Pass::forward, *group, !failure.empty());
  const bool none = taken.states.empty() && r.instances_.empty() && r.enabled() && at::GradMode::is_enabled();
  const std::string differ =
      none && r.group_ != nullptr && shares_amaxes(r.recipe_) ? who_ran_otherwise("ran none", *r.group_) : "";
  end_of_step(taken.states, Pass::forward);
  TORCH_CHECK(failure.empty(), failure);
  TORCH_CHECK(differ.empty(), differ);
}

void Fp8Region::finish_backward() {
  if (recorded("te::finish_backward", [self = shared_from_this()] { self->finish_backward(); })) return;
  const runtime::PhaseScope phase("backward");  // the engine may call from a thread that has none
  const runtime::LeafScope leaf(runtime::LeafScope::Host{"te::finish_backward"});
  Fp8Region& r = root();
  {
    const std::lock_guard<std::mutex> lock(r.mutex_);
    r.callback_.reset();
  }
  const Taken recomputed = r.take(r.recomputed_), taken = r.take(r.backward_);
  if (!recomputed.by_group.empty() || !taken.by_group.empty()) runtime::finish_work();
  for (const auto& [group, states] : recomputed.by_group) reduce(states, Pass::forward, *group);
  end_of_step(recomputed.states, Pass::forward);
  for (const auto& [group, states] : taken.by_group) reduce(states, Pass::backward, *group);
  end_of_step(taken.states, Pass::backward);
}

std::shared_ptr<Fp8Region> current_region() { return t_regions.empty() ? nullptr : t_regions.back().region; }
bool is_fp8_enabled() {
  return !t_regions.empty() && t_regions.back().region != nullptr && t_regions.back().region->enabled();
}

fp8_autocast::fp8_autocast(Fp8AutocastOptions options) : exceptions_(std::uncaught_exceptions()) {
  if (options.enabled) (void)runtime::device_dialect("fp8_autocast");
  region_ = std::make_shared<Fp8Region>(std::move(options), current_region());
  t_regions.push_back({this, region_});
}

fp8_autocast::~fp8_autocast() noexcept(false) { end(); }

void fp8_autocast::end() {
  if (std::exchange(ended_, true)) return;
  take_off(this);
  if (region_->outermost() && std::uncaught_exceptions() == exceptions_) region_->finish_forward();
}

void on_outermost_regions(const RegionHooks& hooks) {
  g_begins = hooks.begins;
  g_ends = hooks.ends;
}

set_measurement_mode::set_measurement_mode(bool manual, bool value)
    : previous_(std::exchange(t_measurement, manual ? std::optional<bool>(value) : std::nullopt)) {}
set_measurement_mode::~set_measurement_mode() { t_measurement = previous_; }

RegionScope::RegionScope(std::shared_ptr<Fp8Region> region) { t_regions.push_back({this, std::move(region)}); }
RegionScope::~RegionScope() { take_off(this); }

}  // namespace fp8::te
