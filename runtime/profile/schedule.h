// SPDX-License-Identifier: Apache-2.0
// Which steps of a run are recorded, as torch.profiler.schedule() counts:
//
//   | wait | warmup | active | wait | warmup | active | ..      `repeat` times; 0: until the end
//             events are  recorded; a trace is
//             dropped     written after the last of them
#pragma once
#include <cstdint>
#include <string>

namespace fp8::runtime {

struct ProfileSchedule {
  std::int64_t wait = 1, warmup = 1, active = 3, repeat = 1;

  std::int64_t cycle() const { return wait + warmup + active; }
};

enum class ProfilePhase { none, warmup, record, record_and_save };

/// Of step 0, 1, ...
ProfilePhase phase_of(const ProfileSchedule& schedule, std::int64_t step);

/// Throws std::invalid_argument "[where] schedule: found 1,1,0, allowed: ..".
void check(const ProfileSchedule& schedule, const char* where);

}  // namespace fp8::runtime
