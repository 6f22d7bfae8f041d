// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/simple_profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <utility>

namespace fp8::runtime {
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
