// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/exit_dump.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "fp8/measure/calibration/session.h"

namespace fp8::measure {

/// Every entry belongs to a session; those of sessions that ended are dropped. The end of the program destroys the
/// list.
struct ExitDump::List {
  std::mutex mutex;
  std::vector<std::weak_ptr<CalibrationSession>> sessions;
  const pid_t process = ::getpid();  // a child made by fork() has a copy, which is the parent's to write

  ~List() {
    if (::getpid() != process) return;
    for (const auto& weak : sessions) {
      if (const auto session = weak.lock()) session->write_if_unfinished("a program that ended");
    }
  }
};

void ExitDump::at_exit(const std::shared_ptr<CalibrationSession>& session) {
  static List list;
  const std::lock_guard<std::mutex> lock(list.mutex);
  const auto ended = [](const auto& weak) { return weak.expired(); };
  list.sessions.erase(std::remove_if(list.sessions.begin(), list.sessions.end(), ended), list.sessions.end());
  list.sessions.push_back(session);
}

}  // namespace fp8::measure
