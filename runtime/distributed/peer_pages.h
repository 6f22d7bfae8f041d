// SPDX-License-Identifier: Apache-2.0
// How ranks of one machine meet: each has a page that the others see.
//
//   page       stage, gone, rows[2] {address, bytes, failed}
//   arrive()   writes this rank's row of its next stage, then the stage; sleeps until the others have come to theirs
//
// Gloo's messages do the same by four wake-ups of two threads each, and while a thread that holds a socket is off its
// core the one that reads it spins: a quarter of a rank's time where ranks have no core to spare.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fp8::runtime::distributed {

/// What a rank says at a stage.
struct PeerRow {
  std::int64_t address = 0, bytes = 0, failed = 0;
};

class PeerPages {
 public:
  /// rank of `ranks`. Its page is /proc/PID/fd/descriptor(), -1: the host has none.
  PeerPages(int rank, int ranks);
  ~PeerPages();
  PeerPages& operator=(PeerPages&&) = delete;

  int descriptor() const { return descriptor_; }
  /// Of another rank. False: this process may not.
  bool open(int rank, pid_t process, int descriptor);

  /// What each rank said at this stage. Throws c10::Error where one has ended, gave up or is late; then there are no
  /// more stages, for any of them. timeout: of less than 0 there is none.
  std::vector<PeerRow> arrive(const PeerRow& mine, std::chrono::milliseconds timeout);

 private:
  struct Page;
  struct Peer {
    Page* page = nullptr;
    int process = -1;  ///< a descriptor that is readable once it has ended
  };
  using Clock = std::chrono::steady_clock;

  void wait_for(int rank, std::uint32_t stage, Clock::time_point since, std::chrono::milliseconds timeout) const;
  void leave();

  const int rank_;
  int descriptor_ = -1;
  std::vector<Peer> peers_;  ///< this rank's among them
  std::uint32_t stage_ = 0;
};

/// Does what it is given in that order, on a thread of its own that the first of it starts. The thread does the rest of
/// it when this has gone.
class PeerThread {
 public:
  ~PeerThread();
  void run(std::function<void()> task);

 private:
  struct Tasks {
    std::mutex mutex;
    std::condition_variable come;
    std::deque<std::function<void()>> waiting;
    bool started = false, ends = false;
  };
  static void work(const std::shared_ptr<Tasks>& tasks);

  const std::shared_ptr<Tasks> tasks_ = std::make_shared<Tasks>();
};

}  // namespace fp8::runtime::distributed
