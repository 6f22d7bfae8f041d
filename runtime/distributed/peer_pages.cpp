// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/peer_pages.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <string>
#include <thread>
#include <utility>

namespace fp8::runtime::distributed {

struct PeerPages::Page {
  std::atomic<std::uint32_t> stage;  ///< a futex
  std::atomic<std::uint32_t> gone;   ///< its rank comes to no further stage
  PeerRow rows[2];                   ///< by stage: a rank is at most one before the slowest
};

namespace {

constexpr std::chrono::milliseconds kLook{50};  // how often who waits looks whether the other has ended
constexpr std::size_t kPageBytes = 4096;

void* map_page(int descriptor) {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return page == MAP_FAILED ? nullptr : page;
}

/// Sleeps while `word` is `seen`, for kLook at most.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec time{0, std::chrono::nanoseconds(kLook).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool has_ended(int process) {
  pollfd asked{process, POLLIN, 0};
  return poll(&asked, 1, 0) == 1;
}

}  // namespace

PeerPages::PeerPages(int rank, int ranks) : rank_(rank), peers_(static_cast<std::size_t>(ranks)) {
  descriptor_ = memfd_create("fp8_peers", MFD_CLOEXEC);
  if (descriptor_ < 0) return;
  void* page = ftruncate(descriptor_, kPageBytes) == 0 ? map_page(descriptor_) : nullptr;  // of zeros
  peers_[static_cast<std::size_t>(rank)].page = static_cast<Page*>(page);
  if (page != nullptr) return;
  close(descriptor_);
  descriptor_ = -1;
}

PeerPages::~PeerPages() {
  leave();
  for (const Peer& peer : peers_) {
    if (peer.page != nullptr) munmap(peer.page, kPageBytes);
    if (peer.process >= 0) close(peer.process);
  }
  if (descriptor_ >= 0) close(descriptor_);
}

bool PeerPages::open(int rank, pid_t process, int descriptor) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  peer.page = static_cast<Page*>(map_page(file));
  close(file);
  peer.process = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  return peer.page != nullptr && peer.process >= 0;
}

std::vector<PeerRow> PeerPages::arrive(const PeerRow& mine, std::chrono::milliseconds timeout) {
  Page& own = *peers_[static_cast<std::size_t>(rank_)].page;
  TORCH_CHECK(own.gone.load(std::memory_order_relaxed) == 0, "the group failed before");
  const std::uint32_t stage = ++stage_;
  own.rows[stage % 2] = mine;
  own.stage.store(stage, std::memory_order_release);
  wake(own.stage);
  const auto since = Clock::now();
  std::vector<PeerRow> rows;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    try {
      if (rank != rank_) wait_for(rank, stage, since, timeout);
    } catch (...) {
      leave();
      throw;
    }
    rows.push_back(peers_[static_cast<std::size_t>(rank)].page->rows[stage % 2]);
  }
  return rows;
}

void PeerPages::wait_for(int rank, std::uint32_t stage, Clock::time_point since,
                         std::chrono::milliseconds timeout) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  for (;;) {
    // Before the stage is: it may come and go meanwhile.
    const bool gone = peer.page->gone.load(std::memory_order_acquire) != 0, ended = has_ended(peer.process);
    const std::uint32_t seen = peer.page->stage.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(seen - stage) >= 0) return;
    TORCH_CHECK(!gone, "Connection closed by rank ", rank, " of ", peers_.size(), ", which failed or left the group");
    TORCH_CHECK(!ended, "Connection closed by rank ", rank, " of ", peers_.size(), ", whose process has ended");
    TORCH_CHECK(timeout.count() < 0 || Clock::now() - since < timeout, "Timed out waiting ", timeout.count(),
                " ms for rank ", rank, " of ", peers_.size());
    sleep_on(peer.page->stage, seen);
  }
}

void PeerPages::leave() {
  Page* own = peers_[static_cast<std::size_t>(rank_)].page;
  if (own == nullptr) return;
  own->gone.store(1, std::memory_order_release);
  wake(own->stage);
}

PeerThread::~PeerThread() {
  const std::lock_guard lock(tasks_->mutex);
  tasks_->ends = true;
  tasks_->come.notify_one();
}

void PeerThread::run(std::function<void()> task) {
  const std::lock_guard lock(tasks_->mutex);
  // The last task may be what drops the last of this.
  if (!std::exchange(tasks_->started, true)) std::thread([tasks = tasks_] { work(tasks); }).detach();
  tasks_->waiting.push_back(std::move(task));
  tasks_->come.notify_one();
}

void PeerThread::work(const std::shared_ptr<Tasks>& tasks) {
  for (;;) {
    std::unique_lock lock(tasks->mutex);
    tasks->come.wait(lock, [&] { return tasks->ends || !tasks->waiting.empty(); });
    if (tasks->waiting.empty()) return;
    const std::function<void()> task = std::move(tasks->waiting.front());
    tasks->waiting.pop_front();
    lock.unlock();
    task();
  }
}

}  // namespace fp8::runtime::distributed
