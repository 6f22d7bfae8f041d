// SPDX-License-Identifier: Apache-2.0
// Which steps of a run are recorded, as torch.profiler.schedule() counts:
//
//   | wait | warmup | active | wait | warmup | active | ..      `repeat` times; 0: until the end
//             events are  recorded; a trace is
//             dropped     written after the last of them
#pragma once
#include <array>
#include <cstdint>

namespace fp8::runtime {

struct ProfileSchedule {
  std::int64_t wait = 1, warmup = 1, active = 3, repeat = 1;

  std::int64_t cycle() const { return wait + warmup + active; }
};

/// What each of its numbers may be.
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

}  // namespace fp8::runtime
