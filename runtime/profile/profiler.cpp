// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/profiler.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <system_error>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/profile/hpu_profiler.h"

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
      io::fail<std::logic_error>("[profiler] start('{}'): it runs already, allowed: another name, or stop('{}') first",
                                 action, action);
  }
  action_begins(action);
}

void Profiler::stop(const std::string& action) {
  {
    const std::lock_guard lock(mutex_);
    if (running_.erase(action) == 0)
      io::fail<std::logic_error>("[profiler] stop('{}'): it does not run, allowed: after start('{}')", action, action);
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
  } catch (const std::logic_error& error) {  // the block itself stopped it
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
  } catch (const std::exception& error) {  // the run's own error is thrown, not its profile's
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
  io::fail<std::invalid_argument>("[profiler] profiler: found '{}', allowed: hpu, pytorch, simple", name);
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
  io::fail<std::invalid_argument>(
      "[{}] schedule: found {}, allowed: active 1 or more, the others 0 or more, each at most 2^40", where, found);
}

namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct ActionRow {
  std::string action;
  std::size_t calls;
  double total;
};

}  // namespace

SimpleProfiler::SimpleProfiler(SimpleProfilerOptions options) : options_(std::move(options)) {
  if (!options_.seconds) options_.seconds = steady_seconds;
  if (!options_.log) options_.log = [](const std::string& text) { std::fputs(text.c_str(), stderr); };
  begin_ = options_.seconds();
}

void SimpleProfiler::stage_begins(const std::string& stage, std::int64_t) { stage_ = stage, process_ = getpid(); }

void SimpleProfiler::stage_ends() {
  if (process_ != getpid()) return;
  if (options_.filename.empty()) return options_.log(summary());
  std::string problem = why_not_writable(options_.dirpath);
  const auto path = std::filesystem::path(options_.dirpath) / ReportName{stage_, options_.filename}.text(".txt");
  if (problem.empty() && !(std::ofstream(path) << summary()).flush()) problem = "it can't be written";
  if (!problem.empty()) options_.warn("[SimpleProfiler] no report " + path.string() + ": " + problem);
}

void SimpleProfiler::action_begins(const std::string& action) {
  const std::lock_guard lock(mutex_);
  started_[action] = options_.seconds();
}

void SimpleProfiler::action_ends(const std::string& action) {
  const std::lock_guard lock(mutex_);
  durations_[action].push_back(options_.seconds() - started_.at(action));
  started_.erase(action);
}

std::map<std::string, std::vector<double>> SimpleProfiler::durations() const {
  const std::lock_guard lock(mutex_);
  return durations_;
}

std::string SimpleProfiler::summary() const {
  const double whole = options_.seconds() - begin_;
  std::vector<ActionRow> rows;
  std::size_t calls = 0, width = 6;
  for (const auto& [action, all] : durations()) {
    rows.push_back({action, all.size(), std::accumulate(all.begin(), all.end(), 0.0)});
    calls += all.size();
    width = std::max(width, action.size());
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &ActionRow::total);
  std::ostringstream out;
  out << std::left << std::setw(static_cast<int>(width)) << "Action" << std::right;
  if (options_.extended) out << " | Mean duration (s) | Num calls";
  out << " | Total time (s) | Percentage %\n" << std::fixed;
  const auto line = [&](const std::string& action, double mean, std::size_t count, double total) {
    out << std::left << std::setw(static_cast<int>(width)) << action << std::right << std::setprecision(5);
    if (options_.extended) {
      out << " | " << std::setw(17);
      if (mean < 0) out << "";
      if (mean >= 0) out << mean;
      out << " | " << std::setw(9) << count;
    }
    out << " | " << std::setw(14) << total << " | " << std::setw(12) << std::setprecision(2)
        << (whole > 0 ? 100 * total / whole : 0) << "\n";
  };
  line("Total", -1, calls, whole);
  for (const auto& row : rows) line(row.action, row.total / static_cast<double>(row.calls), row.calls, row.total);
  return out.str();
}

}  // namespace fp8::runtime
