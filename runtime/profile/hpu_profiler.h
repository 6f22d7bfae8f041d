// SPDX-License-Identifier: Apache-2.0
// HPUProfiler: a trace per stage and rank, of the host's events and the device's lane (below), in the form that
// chrome://tracing, Perfetto, torch-tb-profiler and `fp8 inspect` read, and a summary of where the time went.
//
//   <dirpath>/<stage>-<filename>[-<rank>].<nanoseconds>.pt.trace.json    after each cycle of the schedule
//   <dirpath>/<stage>-<filename>[-<rank>].txt                            summary(), if there is a filename
//
// Actions are events "[pl][profile]name"; within its stages a Trainer has those of its own names (training_step,
// backward, optimizer_step, ..), which a program's actions can't have at the same time. Stages, steps and
// actions come from the thread that records: fit()'s. Ops run to their end before they return here, so that times are
// what they take. A recording is bounded however long a step is: what it leaves out is counted, in a warning and in the
// trace ("leavesLeftOut", "hostEventsLeftOut"), and nothing is recorded after that step.
#pragma once

#include <optional>

#include "fp8/runtime/profile/leaf_log.h"
#include "fp8/runtime/profile/profiler.h"

namespace fp8::runtime {

enum class ProfilerActivity { CPU, HPU };

struct HPUProfilerOptions {
  std::string dirpath = "hpu_profile", filename = {};
  /// Unset: {1, 1, 3, 1}, or all steps where a stage is known to have fewer than five.
  std::optional<ProfileSchedule> schedule = {};
  std::vector<ProfilerActivity> activities = {ProfilerActivity::CPU, ProfilerActivity::HPU};
  bool record_shapes = false;              ///< of the host's events; the lane's always have them
  bool memory_counter = true;              ///< bytes in use on the device, after each leaf
  bool profile_memory = false;             ///< each allocation
  bool with_modules = false;               ///< TorchScript's modules of the host's events
  bool record_module_names = false;        ///< events "[pl][module]Type: path"
  bool record_values = false;              ///< amax and saturated share of casts to fp8
  bool group_by_input_shapes = false;      ///< in summary()
  bool export_to_chrome = true;            ///< false: no trace, the summary only
  std::int64_t most_host_events = 262144;  ///< of a cycle; half with profile_memory: 2 kB each
  std::int64_t row_limit = 20;             ///< of each table of summary(); -1: all
  std::string sort_by_key = "time";        ///< time (also cpu_time_total, hpu_time_total), count, flops, bytes
  std::function<std::int64_t()> clock_ns = nullptr;  ///< for the names of files; null: since 1970
  Warn warn = warn_by_torch;
};

class HPUProfiler final : public Profiler {
 public:
  /// Throws std::invalid_argument naming an option.
  explicit HPUProfiler(HPUProfilerOptions options = {});
  ~HPUProfiler() override;

  void step() override;
  /// By op, by module and by stack: calls, time, share, flops and bytes per second.
  std::string summary() const override;
  /// LeafSummary::folded(). Throws io::Error if the file can't be written.
  void export_flame_graph(const std::string& path) const;

  const LeafSummary& leaves() const { return leaves_; }
  const std::vector<std::string>& traces() const { return traces_; }  ///< files written so far

 protected:
  void stage_begins(const std::string& stage, std::int64_t steps) override;
  void stage_ends() override;
  void action_begins(const std::string& action) override;
  void action_ends(const std::string& action) override;

 private:
  struct Recording;
  struct Events;

  bool on_hpu() const;
  bool forked() const;  ///< since the stage began: its recording and its files are the parent's
  void enter(ProfilePhase phase);
  void leave();
  std::int64_t most_host_events() const;
  void report_left_out();
  void finish_cycle();
  void write_report();
  void give_up(const std::string& why);

  HPUProfilerOptions options_;
  ProfileSchedule schedule_;
  SummaryOrder order_;
  std::string stage_, name_;  ///< name_: of its files, without time and ending
  bool off_ = true;           ///< no stage, or nothing can be written
  bool full_ = false;         ///< a recording was: the stage is recorded no further
  std::int64_t step_ = 0;
  int process_ = 0;  ///< that began the stage
  ProfilePhase phase_ = ProfilePhase::none;
  std::unique_ptr<Recording> recording_;
  std::unique_ptr<Events> events_;
  LeafSummary leaves_;
  std::vector<std::string> traces_;
};

// How many events of the host a recording of LibTorch's keeps. Each takes about a kilobyte until the trace is written,
// and a step may have any number of them: beyond the first `most` LibTorch's callback is turned off on each thread
// that comes by, allocations are no longer recorded, and events are only counted.
//
//   kineto::enableProfiler(..);
//   const HostEvents events(1 << 18);
//   ..                                    events.left_out()
//   kineto::disableProfiler();

class HostEvents {
 public:
  /// On the thread whose profiler LibTorch has just enabled. One at a time in a process, as of Kineto's recordings.
  explicit HostEvents(std::int64_t most);
  ~HostEvents();
  HostEvents(const HostEvents&) = delete;
  HostEvents& operator=(const HostEvents&) = delete;

  /// How many came after the first `most`. Still kept are each thread's first of them, and that of each node of a
  /// backward that was under way, whose threads take forward's callbacks for each.
  std::int64_t left_out() const;

 private:
  at::CallbackHandle counter_;
};

// The device's lane in LibTorch's profilers: a process "hpu 0 (emulated GAUDI3)" with an event of category "hpu_op" for
// each leaf, in the trace and in the tables of each profiler with ActivityType::HPU: HPUProfiler, and in Python
//
//   torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.HPU])
//
// args: module, phase, backward, dtypes and sizes of inputs and outputs, bytes, flops, stream; an arrow comes from the
// op that ran the leaf. More on request, as words of ExperimentalConfig's custom_profiler_config:
//
//   "fp8:modules"   ModuleScopes as events "[pl][module]Type: path"
//   "fp8:numbers"   amax and saturated share of casts to fp8
//   "fp8:memory"    a counter of the bytes in use
//
// Loading the library is enough; without a profiler nothing listens.

/// "fp8:modules fp8:memory": the words of `options`.
std::string lane_words(const LeafLogOptions& options);

/// A number of its own in the trace that is being recorded.
void add_to_trace(const std::string& key, std::int64_t value);

/// Without what Kineto's JSON can't hold: it turns each backslash into a slash, so that no character may need one.
std::string trace_text(std::string value);

/// The recording of the lane, or its last one; null before the first.
std::shared_ptr<const LeafLog> last_leaf_log();

// Optimum's HabanaProfile: a trace of some steps of a loop that is no Trainer's.
//
//   HabanaProfile profile({.warmup = 3, .active = 5});
//   profile.start();
//   for (..) { work(); profile.step(); }
//   profile.stop();
//
// One records at a time: start() stops another of its thread; where one of another thread records, it warns.
// active 0 or less: nothing is done.

struct HabanaProfileOptions {
  std::int64_t wait = 0, warmup = 0, active = 0;
  bool record_shapes = true;
  std::string name = {};  ///< part of the file's name
  std::string output_dir = "./hpu_profile";
};

class HabanaProfile {
 public:
  /// Throws std::invalid_argument for a negative wait or warmup.
  explicit HabanaProfile(HabanaProfileOptions options);
  ~HabanaProfile();
  HabanaProfile(const HabanaProfile&) = delete;
  HabanaProfile& operator=(const HabanaProfile&) = delete;

  void start();
  void stop();
  void step();

  bool running() const { return running_; }
  /// Null where `active` asks for nothing.
  const HPUProfiler* profiler() const { return profiler_.get(); }

 private:
  std::unique_ptr<HPUProfiler> profiler_;
  bool running_ = false;
};

}  // namespace fp8::runtime
