// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/schedule.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fp8::runtime {

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
