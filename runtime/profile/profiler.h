// SPDX-License-Identifier: Apache-2.0
// Profilers get the stages, steps and actions of a Trainer, a program or a module.
//
//   trainer::Trainer trainer({.max_steps = 100, .profiler = runtime::make_profiler("hpu")});
//
//   const auto action = profiler->profile("my_custom_action");        until the end of the block
//   profiler->start("my_custom_action"); ..; profiler->stop("my_custom_action");
//
// Actions nest. An action of a name that runs already is refused, for stop() would not say which of the two it means.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fp8::runtime {

class ProfiledAction;

class Profiler {
 public:
  virtual ~Profiler() = default;

  /// "fit", "validate", "test", "predict". steps: that will follow, -1 where that is unknown. A stage within a stage
  /// (the validation of a fit) is part of it. Never throws for a folder that can't be written: that is one warning.
  void begin_stage(const std::string& stage, std::int64_t steps = -1);
  void end_stage();

  /// Throws std::logic_error naming an action that runs already.
  void start(const std::string& action);
  /// Throws std::logic_error naming an action that does not run.
  void stop(const std::string& action);
  ProfiledAction profile(std::string action);

  /// An optimizer step, or a batch of another stage, is over.
  virtual void step() {}
  /// The results so far, as a table.
  virtual std::string summary() const = 0;
  int stages() const { return stages_; }  ///< that run, one within the other

 protected:
  virtual void stage_begins(const std::string& stage, std::int64_t steps) = 0;
  virtual void stage_ends() = 0;
  virtual void action_begins(const std::string& action) = 0;
  virtual void action_ends(const std::string& action) = 0;

 private:
  std::mutex mutex_;
  std::set<std::string> running_;
  int stages_ = 0;
};

/// An action until the end of a block. A null profiler: nothing.
class ProfiledAction {
 public:
  ProfiledAction(Profiler* profiler, std::string action);
  ~ProfiledAction();
  ProfiledAction(const ProfiledAction&) = delete;
  ProfiledAction& operator=(const ProfiledAction&) = delete;

 private:
  Profiler* profiler_;
  std::string action_;
};

/// A stage until the end of a block, whatever ends it. A null profiler: nothing.
class ProfiledStage {
 public:
  ProfiledStage(Profiler* profiler, const std::string& stage, std::int64_t steps = -1);
  ~ProfiledStage();
  ProfiledStage(const ProfiledStage&) = delete;
  ProfiledStage& operator=(const ProfiledStage&) = delete;

  /// A step of this stage, unless it is part of another.
  void step() const;

 private:
  Profiler* profiler_;
};

/// "hpu": HPUProfiler. "pytorch": the same without the device's lane. "simple": SimpleProfiler. Throws
/// std::invalid_argument with the list for another name.
std::shared_ptr<Profiler> make_profiler(const std::string& name);

/// Folder, name and time of a report of this process:
///
///   <dirpath>/<stage>-<filename>[-<rank>].<nanoseconds><ending>     rank: of several processes; no empty parts
struct ReportName {
  std::string stage, filename;
  std::int64_t time_ns = -1;  ///< -1: none in the name

  std::string text(const std::string& ending) const;
};

/// Makes `folder` and finds out whether a file can be written there. Else the reason.
std::string why_not_writable(const std::string& folder);

using Warn = std::function<void(const std::string&)>;
/// LibTorch's TORCH_WARN.
void warn_by_torch(const std::string& text);

// Which steps of a run are recorded, as torch.profiler.schedule() counts:
//
//   | wait | warmup | active | wait | warmup | active | ..      `repeat` times; 0: until the end
//             events are  recorded; a trace is
//             dropped     written after the last of them

struct ProfileSchedule {
  std::int64_t wait = 1, warmup = 1, active = 3, repeat = 1;

  std::int64_t cycle() const { return wait + warmup + active; }
};

/// The range of each of its numbers.
struct ScheduleField {
  const char* name;
  std::int64_t ProfileSchedule::*value;
  std::int64_t least;

  bool fits(std::int64_t count) const { return count >= least && count <= std::int64_t{1} << 40; }
};
inline constexpr auto kScheduleFields = std::to_array<ScheduleField>({
    {"wait", &ProfileSchedule::wait, 0},
    {"warmup", &ProfileSchedule::warmup, 0},
    {"active", &ProfileSchedule::active, 1},
    {"repeat", &ProfileSchedule::repeat, 0},
});

enum class ProfilePhase { none, warmup, record, record_and_save };

/// Of step 0, 1, ...
ProfilePhase phase_of(const ProfileSchedule& schedule, std::int64_t step);

/// Throws std::invalid_argument "[where] schedule: found 1,1,0, allowed: ..".
void check(const ProfileSchedule& schedule, const char* where);

// Wall clock per action, as Lightning's SimpleProfiler: what to time a run with, since it slows nothing down.
//
//   Action             | Mean duration (s) | Num calls | Total time (s) | Percentage %
//   Total              |                   |         9 |         1.2500 |        100 %
//   training_step      |            0.2000 |         5 |         1.0000 |         80 %
//
// With a filename each stage leaves <stage>-<filename>[-<rank>].txt; without, the table is logged at its end.

struct SimpleProfilerOptions {
  std::string dirpath = ".", filename = {};
  bool extended = true;                                   ///< also mean and calls; else totals only
  std::function<double()> seconds = nullptr;              ///< a clock; null: the steady one
  std::function<void(const std::string&)> log = nullptr;  ///< takes a stage's table; null: stderr
  Warn warn = warn_by_torch;
};

class SimpleProfiler final : public Profiler {
 public:
  explicit SimpleProfiler(SimpleProfilerOptions options = {});

  std::string summary() const override;
  /// Seconds of each call so far.
  std::map<std::string, std::vector<double>> durations() const;

 protected:
  void stage_begins(const std::string& stage, std::int64_t steps) override;
  void stage_ends() override;
  void action_begins(const std::string& action) override;
  void action_ends(const std::string& action) override;

 private:
  SimpleProfilerOptions options_;
  mutable std::mutex mutex_;
  std::string stage_;
  int process_ = 0;  ///< that began the stage: a forked child writes no report
  double begin_;
  std::map<std::string, double> started_;
  std::map<std::string, std::vector<double>> durations_;
};

}  // namespace fp8::runtime
