// SPDX-License-Identifier: Apache-2.0
// --profile DIR: a trace of some steps, for people and for `fp8 inspect`. No torch here.
#pragma once
#include <filesystem>
#include <string>

#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

struct ProfileOptions {
  std::filesystem::path folder;  ///< empty: nothing is recorded
  std::string schedule_text;     ///< as given; empty: the profiler's own

  /// Throws UsageError, also for a schedule without a folder.
  runtime::ProfileSchedule schedule() const;
};

/// --profile --profile-schedule. step: what a step of this command is: "optimizer step", "forward".
void add_profile_options(Options& options, ProfileOptions& target, const std::string& step);
void check_profile_options(const ProfileOptions& options);

}  // namespace fp8::commands
