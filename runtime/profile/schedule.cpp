// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/schedule.h"

#include <stdexcept>

namespace fp8::runtime {

ProfilePhase phase_of(const ProfileSchedule& schedule, std::int64_t step) {
  const std::int64_t at = step % schedule.cycle();
  if (schedule.repeat > 0 && step / schedule.cycle() >= schedule.repeat) return ProfilePhase::none;
  if (at < schedule.wait) return ProfilePhase::none;
  if (at < schedule.wait + schedule.warmup) return ProfilePhase::warmup;
  return at + 1 < schedule.cycle() ? ProfilePhase::record : ProfilePhase::record_and_save;
}

void check(const ProfileSchedule& s, const char* where) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const auto fits = [](std::int64_t value, std::int64_t least) { return value >= least && value <= kMany; };
  if (fits(s.wait, 0) && fits(s.warmup, 0) && fits(s.active, 1) && fits(s.repeat, 0)) return;
  throw std::invalid_argument(std::string("[") + where + "] schedule: found wait " + std::to_string(s.wait) +
                              ", warmup " + std::to_string(s.warmup) + ", active " + std::to_string(s.active) +
                              ", repeat " + std::to_string(s.repeat) +
                              ", allowed: active 1 or more, the others 0 or more, each at most 2^40");
}

}  // namespace fp8::runtime
