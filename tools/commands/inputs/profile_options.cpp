// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/profile_options.h"

#include <string_view>

namespace fp8::commands {

void add_profile_options(Options& options, ProfileOptions& target, const std::string& step) {
  options.path(
      "--profile", target.folder,
      "Folder for a trace of some steps, <stage>.<time>.pt.trace.json: fp8 inspect, chrome://tracing, Perfetto "
      "and TensorBoard show it");
  options.text(
      "--profile-schedule", target.schedule_text,
      "With --profile: steps to wait, to warm up, to record, and how often (0: until the end), each step one " + step +
          "; default 1,1,3,1, or all of fewer than five");
}

runtime::ProfileSchedule ProfileOptions::schedule() const {
  constexpr const char* kAllowed =
      ", allowed: WAIT,WARMUP,ACTIVE or WAIT,WARMUP,ACTIVE,REPEAT, ACTIVE 1 or more, the others 0 or more (1,1,3)";
  const auto& fields = runtime::kScheduleFields;
  runtime::ProfileSchedule schedule{.repeat = 1};
  std::size_t count = 0;
  for (std::string_view rest = schedule_text; count <= fields.size();) {
    const auto comma = rest.find(',');
    const auto value = parse_integer(rest.substr(0, comma));
    if (!value || count == fields.size() || !fields[count].fits(*value)) break;
    schedule.*fields[count++].value = *value;
    if (comma == std::string_view::npos) {
      if (count < 3) break;
      return schedule;
    }
    rest.remove_prefix(comma + 1);
  }
  throw UsageError("--profile-schedule: found '" + schedule_text + "'" + kAllowed);
}

void check_profile_options(const ProfileOptions& o) {
  if (o.schedule_text.empty()) return;
  if (o.folder.empty()) throw UsageError("--profile-schedule: found '" + o.schedule_text + "', but no --profile");
  (void)o.schedule();
}

}  // namespace fp8::commands
