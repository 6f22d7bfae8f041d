// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/profiler.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/profile/hpu_profiler.h"
#include "fp8/runtime/profile/simple_profiler.h"

namespace fp8::runtime {

void Profiler::begin_stage(const std::string& stage, std::int64_t steps) {
  if (stages_++ == 0) stage_begins(stage, steps);
}

void Profiler::end_stage() {
  if (stages_ == 0) throw std::logic_error("[profiler] end_stage(): no stage runs, allowed: after begin_stage()");
  if (--stages_ == 0) stage_ends();
}

void Profiler::start(const std::string& action) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_.insert(action).second)
      throw std::logic_error("[profiler] start('" + action + "'): it runs already, allowed: another name, or stop('" +
                             action + "') first");
  }
  action_begins(action);
}

void Profiler::stop(const std::string& action) {
  {
    const std::lock_guard lock(mutex_);
    if (running_.erase(action) == 0)
      throw std::logic_error("[profiler] stop('" + action + "'): it does not run, allowed: after start('" + action +
                             "')");
  }
  action_ends(action);
}

ProfiledAction Profiler::profile(std::string action) { return {this, std::move(action)}; }

ProfiledAction::ProfiledAction(Profiler* profiler, std::string action)
    : profiler_(profiler), action_(std::move(action)) {
  if (profiler_ != nullptr) profiler_->start(action_);
}

ProfiledAction::~ProfiledAction() {
  if (profiler_ == nullptr) return;
  try {
    profiler_->stop(action_);
  } catch (const std::logic_error& error) {  // somebody stopped it within the block
    warn_by_torch(error.what());
  }
}

ProfiledStage::ProfiledStage(Profiler* profiler, const std::string& stage, std::int64_t steps) : profiler_(profiler) {
  if (profiler_ != nullptr) profiler_->begin_stage(stage, steps);
}

ProfiledStage::~ProfiledStage() {
  if (profiler_ == nullptr) return;
  try {
    profiler_->end_stage();
  } catch (const std::exception& error) {  // what ended the run is told, not that its profile went with it
    warn_by_torch(error.what());
  }
}

void ProfiledStage::step() const {
  if (profiler_ != nullptr && profiler_->stages() == 1) profiler_->step();
}

std::shared_ptr<Profiler> make_profiler(const std::string& name) {
  if (name == "hpu") return std::make_shared<HPUProfiler>();
  if (name == "pytorch")
    return std::make_shared<HPUProfiler>(HPUProfilerOptions{.activities = {ProfilerActivity::CPU}});
  if (name == "simple") return std::make_shared<SimpleProfiler>();
  throw std::invalid_argument("[profiler] profiler: found '" + name + "', allowed: hpu, pytorch, simple");
}

std::string ReportName::text(const std::string& ending) const {
  TORCH_CHECK(filename.empty() || io::is_file_name(filename), "[profiler] filename: found ", io::in_quotes(filename),
              ", allowed: a name without '/'; dirpath says where");
  std::string out = stage;
  if (!filename.empty()) out += "-" + filename;
  if (const auto launched = io::launched(); launched && launched->size > 1) out += "-" + std::to_string(launched->rank);
  if (time_ns >= 0) out += "." + std::to_string(time_ns);
  return out + ending;
}

std::string why_not_writable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return error.message();
  const auto probe = std::filesystem::path(folder) / (".fp8-" + std::to_string(getpid()));
  if (!std::ofstream(probe).put('\n').flush()) return "no file can be written there";
  std::filesystem::remove(probe, error);
  return "";
}

void warn_by_torch(const std::string& text) { TORCH_WARN(text); }

ProfilePhase phase_of(const ProfileSchedule& schedule, std::int64_t step) {
  const std::int64_t at = step % schedule.cycle();
  if (schedule.repeat > 0 && step / schedule.cycle() >= schedule.repeat) return ProfilePhase::none;
  if (at < schedule.wait) return ProfilePhase::none;
  if (at < schedule.wait + schedule.warmup) return ProfilePhase::warmup;
  return at + 1 < schedule.cycle() ? ProfilePhase::record : ProfilePhase::record_and_save;
}

void check(const ProfileSchedule& s, const char* where) {
  if (std::ranges::all_of(kScheduleFields, [&](const ScheduleField& field) { return field.fits(s.*field.value); }))
    return;
  std::string found;
  for (const ScheduleField& field : kScheduleFields)
    found += (found.empty() ? "" : ", ") + std::string(field.name) + " " + std::to_string(s.*field.value);
  throw std::invalid_argument(std::string("[") + where + "] schedule: found " + found +
                              ", allowed: active 1 or more, the others 0 or more, each at most 2^40");
}

}  // namespace fp8::runtime
