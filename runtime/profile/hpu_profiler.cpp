// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/hpu_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <system_error>
#include <thread>

#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::runtime {
namespace {

namespace fs = std::filesystem;
namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr auto kOrders = std::to_array<std::pair<std::string_view, SummaryOrder>>({
    {"time", SummaryOrder::time},
    {"cpu_time_total", SummaryOrder::time},
    {"hpu_time_total", SummaryOrder::time},
    {"count", SummaryOrder::count},
    {"flops", SummaryOrder::flops},
    {"bytes", SummaryOrder::bytes},
});

SummaryOrder order_of(const std::string& key) {
  for (const auto& [name, order] : kOrders)
    if (name == key) return order;
  io::fail<std::invalid_argument>(
      "[HPUProfiler] sort_by_key: found '{}', allowed: time, cpu_time_total, hpu_time_total, count, flops, bytes", key);
}

std::int64_t system_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::unique_ptr<at::RecordFunction> event(const std::string& name) {
  auto event = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (event->isActive()) event->before(trace_text(name));
  return event;
}

/// LibTorch doesn't say that the disk is full: the end is missing then.
bool is_whole(const fs::path& trace) {
  std::ifstream file(trace, std::ios::binary | std::ios::ate);
  char last = ' ';
  for (auto at = static_cast<std::int64_t>(file.tellg()); at > 0 && (last == ' ' || last == '\n');)
    if (!file.seekg(--at).get(last)) return false;
  return last == '}';
}

std::atomic<bool> g_recorded = false;

/// Kineto records for one at a time in a process, whatever its thread.
class Owner {
 public:
  Owner() {
    if (g_recorded.exchange(true)) throw std::runtime_error("another HPUProfiler records");
  }
  ~Owner() { g_recorded = false; }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
};

}  // namespace

/// LibTorch's profiler of this thread, from the warm-up on.
struct HPUProfiler::Recording {
  Recording(const HPUProfilerOptions& o, bool hpu)
      : config(torch::profiler::impl::ProfilerState::KINETO, o.record_shapes, o.profile_memory, /*with_stack=*/false,
               /*with_flops=*/false, o.with_modules) {
    for (const auto activity : o.activities)
      if (activity == ProfilerActivity::CPU) activities.insert(ActivityType::CPU);
    if (hpu) activities.insert(ActivityType::HPU);
    config.experimental_config.custom_profiler_config =
        lane_words({.modules = o.record_module_names, .numbers = o.record_values, .memory = o.memory_counter});
    config.experimental_config.trace_only = true;  // else each event is kept twice
    kineto::prepareProfiler(config, activities);
  }
  ~Recording() {
    host_events.reset();
    if (process != getpid()) return;  // Kineto's threads are the parent's
    if (enabled && torch::profiler::impl::profilerEnabled()) kineto::disableProfiler();
  }
  void enable(std::int64_t most_host_events) {
    if (std::exchange(enabled, true)) return;
    kineto::enableProfiler(config, activities);
    host_events.emplace(most_host_events);
  }
  /// Null where none runs: LibTorch's result has no trace then, and can't be saved.
  std::unique_ptr<kineto::ProfilerResult> disable() {
    enabled = false;
    host_events.reset();
    return torch::profiler::impl::profilerEnabled() ? kineto::disableProfiler() : nullptr;
  }

  Owner owner;
  const int process = getpid();
  torch::profiler::impl::ProfilerConfig config;
  std::set<ActivityType> activities;
  std::optional<HostEvents> host_events;  ///< while it is enabled
  bool enabled = false;
};

struct HPUProfiler::Events {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<at::RecordFunction>> actions;
  std::unique_ptr<at::RecordFunction> step;
};

HPUProfiler::HPUProfiler(HPUProfilerOptions options)
    : options_(std::move(options)), order_(order_of(options_.sort_by_key)), events_(std::make_unique<Events>()) {
  if (options_.schedule) check(*options_.schedule, "HPUProfiler");
  if (options_.activities.empty())
    throw std::invalid_argument("[HPUProfiler] activities: found none, allowed: CPU, HPU or both");
  if (options_.row_limit < -1)
    io::fail<std::invalid_argument>("[HPUProfiler] row_limit: found {}, allowed: 0 or more, or -1 for all",
                                    options_.row_limit);
  if (options_.most_host_events < 1)
    io::fail<std::invalid_argument>("[HPUProfiler] most_host_events: found {}, allowed: 1 or more",
                                    options_.most_host_events);
  if (!options_.clock_ns) options_.clock_ns = system_ns;
  if (!options_.warn) options_.warn = warn_by_torch;
}

HPUProfiler::~HPUProfiler() = default;

bool HPUProfiler::on_hpu() const {
  return std::ranges::find(options_.activities, ProfilerActivity::HPU) != options_.activities.end();
}

void HPUProfiler::give_up(const std::string& why) {
  options_.warn("[HPUProfiler] nothing is recorded: " + why);
  off_ = true;
}

void HPUProfiler::stage_begins(const std::string& stage, std::int64_t steps) {
  stage_ = stage;
  step_ = 0;
  process_ = getpid();
  off_ = full_ = false;
  try {
    name_ = ReportName{stage, options_.filename}.text("");
  } catch (const std::exception& error) {  // the launcher's variables
    return give_up(error.what());
  }
  if (const auto why = why_not_writable(options_.dirpath); !why.empty())
    return give_up("dirpath '" + options_.dirpath + "': " + why);
  schedule_ = options_.schedule.value_or(ProfileSchedule{});
  if (!options_.schedule && steps >= 0 && steps < schedule_.cycle()) {
    options_.warn(io::message("[HPUProfiler] {}: all of its {} steps are recorded: the default schedule needs {}",
                              stage, steps, schedule_.cycle()));
    schedule_ = {.wait = 0, .warmup = 0, .active = std::max<std::int64_t>(1, steps)};
  }
  enter(phase_of(schedule_, 0));
}

void HPUProfiler::enter(ProfilePhase phase) {
  phase_ = phase;
  if (off_ || full_ || phase == ProfilePhase::none) return;
  if (recording_ == nullptr && torch::profiler::impl::profilerEnabled())
    return give_up("another profiler records this thread");
  try {
    if (recording_ == nullptr) recording_ = std::make_unique<Recording>(options_, on_hpu());
    if (phase != ProfilePhase::warmup) recording_->enable(most_host_events());
  } catch (const c10::Error& error) {
    recording_.reset();
    return give_up(error.what_without_backtrace());
  } catch (const std::exception& error) {
    recording_.reset();
    return give_up(error.what());
  }
  events_->step = event("ProfilerStep#" + std::to_string(step_));
}

void HPUProfiler::leave() {
  events_->step.reset();
  if (recording_ == nullptr || !recording_->enabled) return;
  if (const auto log = on_hpu() ? last_leaf_log() : nullptr; log != nullptr && log->full()) full_ = true;
  if (recording_->host_events->left_out() > 0) full_ = true;
  if (full_ || phase_ != ProfilePhase::record) finish_cycle();
}

bool HPUProfiler::forked() const { return process_ != getpid(); }

void HPUProfiler::step() {
  if (off_ || forked()) return;
  leave();
  ++step_;
  enter(phase_of(schedule_, step_));
}

std::int64_t HPUProfiler::most_host_events() const {
  const auto most = options_.most_host_events;
  return options_.profile_memory ? std::max<std::int64_t>(1, most / 2) : most;
}

/// In the trace, and once for the user: of leaves the lane says it.
void HPUProfiler::report_left_out() {
  if (const auto log = on_hpu() ? last_leaf_log() : nullptr; log != nullptr && log->full())
    add_to_trace("leavesLeftOut", static_cast<std::int64_t>(log->dropped()));
  const auto events = recording_->host_events->left_out();
  if (events == 0) return;
  add_to_trace("hostEventsLeftOut", events);
  options_.warn(
      io::message("[HPUProfiler] {}: {} events of the host beyond the first {} are not in the trace, nor is what "
                  "follows their step",
                  stage_, events, most_host_events()));
}

void HPUProfiler::finish_cycle() {
  report_left_out();
  const auto result = recording_->disable();
  recording_.reset();
  if (result == nullptr) return options_.warn("[HPUProfiler] " + stage_ + ": somebody else ended the recording");
  if (on_hpu())
    if (const auto log = last_leaf_log(); log != nullptr && log->on_hpu()) leaves_.add(*log);
  if (!options_.export_to_chrome) return;
  const auto name = name_ + "." + std::to_string(options_.clock_ns());
  const auto path = (fs::path(options_.dirpath) / (name + ".pt.trace.json")).string();
  const auto unfinished = (fs::path(options_.dirpath) / ("." + name + ".tmp")).string();
  result->save(unfinished);
  std::error_code error;
  if (!is_whole(unfinished)) {
    fs::remove(unfinished, error);
    return options_.warn("[HPUProfiler] " + path + " can't be written");
  }
  fs::rename(unfinished, path, error);
  if (error) return options_.warn("[HPUProfiler] " + path + ": " + error.message());
  traces_.push_back(path);
}

void HPUProfiler::write_report() {
  if (options_.filename.empty()) return;
  const auto path = fs::path(options_.dirpath) / (name_ + ".txt");
  try {
    io::AtomicFile file(path);
    file.append(summary());
    file.commit();
  } catch (const std::exception& error) {
    options_.warn("[HPUProfiler] no report: " + std::string(error.what()));
  }
}

void HPUProfiler::stage_ends() {
  if (off_ || forked()) return;
  const bool recorded = !traces_.empty() || !leaves_.empty();
  phase_ = ProfilePhase::record_and_save;  // what was recorded of an unfinished cycle counts
  leave();
  recording_.reset();
  off_ = true;
  if (!recorded && traces_.empty() && leaves_.empty())
    options_.warn(
        io::message("[HPUProfiler] {} ended after {} steps, before the schedule's first that is recorded ({})", stage_,
                    step_, schedule_.wait + schedule_.warmup));
  write_report();
}

void HPUProfiler::action_begins(const std::string& action) {
  auto begun = event("[pl][profile]" + action);
  const std::lock_guard lock(events_->mutex);
  events_->actions[action] = std::move(begun);
}

void HPUProfiler::action_ends(const std::string& action) {
  const std::lock_guard lock(events_->mutex);
  events_->actions.erase(action);
}

std::string HPUProfiler::summary() const {
  if (leaves_.empty()) return "no operation on hpu was recorded\n";
  const auto ops = options_.group_by_input_shapes ? SummaryBy::op_and_shapes : SummaryBy::op;
  std::string out;
  for (const auto by : {ops, SummaryBy::module, SummaryBy::stack})
    out += (out.empty() ? "" : "\n") + leaves_.table(by, options_.row_limit, order_);
  if (leaves_.dropped() > 0) out += std::to_string(leaves_.dropped()) + " leaves were too many to be kept\n";
  return out;
}

void HPUProfiler::export_flame_graph(const std::string& path) const {
  io::AtomicFile file(path);
  file.append(leaves_.folded());
  file.commit();
}

namespace {

std::atomic<std::int64_t> g_seen = 0, g_most = 0;
std::atomic<at::CallbackHandle> g_recorder = at::INVALID_CALLBACK_HANDLE;

/// A backward's threads have callbacks of their own: what forward's had as it began.
void stop_recording_here() {
  const auto recorder = g_recorder.load(std::memory_order_relaxed);
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  const auto records = [=](const auto& entry) { return entry.handle_ == recorder && entry.enabled_; };
  if (std::ranges::none_of(callbacks, records)) return;
  at::disableCallback(recorder);
  // There is no other switch for allocations.
  if (const auto* state = torch::profiler::impl::ProfilerStateBase::get(/*global=*/false))
    const_cast<torch::profiler::impl::ProfilerConfig&>(state->config()).profile_memory = false;
}

std::unique_ptr<at::ObserverContext> event_begins(const at::RecordFunction&) {
  if (g_seen.fetch_add(1, std::memory_order_relaxed) + 1 >= g_most.load(std::memory_order_relaxed)) [[unlikely]]
    stop_recording_here();
  return nullptr;
}

}  // namespace

HostEvents::HostEvents(std::int64_t most) {
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  g_recorder = callbacks.empty() ? at::INVALID_CALLBACK_HANDLE : callbacks.back().handle_;  // the newest
  g_seen = 0, g_most = most;
  counter_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&event_begins));
}

HostEvents::~HostEvents() { at::removeCallback(counter_); }

std::int64_t HostEvents::left_out() const { return std::max<std::int64_t>(0, g_seen - g_most); }

namespace {

std::mutex g_mutex;
HabanaProfile* g_recording = nullptr;
std::thread::id g_thread;  // that it records: LibTorch's profilers are a thread's

}  // namespace

HabanaProfile::HabanaProfile(HabanaProfileOptions o) {
  if (o.active <= 0) return;
  HPUProfilerOptions options;
  options.dirpath = std::move(o.output_dir), options.filename = std::move(o.name);
  options.schedule = ProfileSchedule{.wait = o.wait, .warmup = o.warmup, .active = o.active, .repeat = 1};
  options.record_shapes = o.record_shapes;
  profiler_ = std::make_unique<HPUProfiler>(std::move(options));
}

HabanaProfile::~HabanaProfile() {
  try {
    stop();
  } catch (const std::exception& error) {
    warn_by_torch(error.what());
  }
}

void HabanaProfile::start() {
  if (profiler_ == nullptr || running_) return;
  HabanaProfile* other = nullptr;
  {
    const std::lock_guard lock(g_mutex);
    if (g_thread == std::this_thread::get_id()) other = g_recording;
  }
  if (other != nullptr) other->stop();
  {
    const std::lock_guard lock(g_mutex);
    if (g_recording == nullptr) g_recording = this, g_thread = std::this_thread::get_id();
  }
  running_ = true;
  profiler_->begin_stage("profile");
}

void HabanaProfile::stop() {
  if (!running_) return;
  running_ = false;
  {
    const std::lock_guard lock(g_mutex);
    if (g_recording == this) g_recording = nullptr;
  }
  profiler_->end_stage();
}

void HabanaProfile::step() {
  if (running_) profiler_->step();
}

}  // namespace fp8::runtime
