// SPDX-License-Identifier: Apache-2.0
// Fork-join: the caller publishes a job, takes pieces of it itself, and waits only for workers that have taken a piece.
//
//   caller: publish -> take pieces until none is left -> close the job -> wait until no thread is inside -> rethrow
//   worker: (short spin, then sleep) -> enter the open job -> take pieces -> leave
//
// A worker that wakes too late finds the job closed and costs nothing, so progress never depends on the workers. The
// pool is never destroyed: its threads may outlive static destructors without touching anything that is gone.
#include "fp8/runtime/kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>

#include "fp8/runtime/io/base/fail.h"
#endif

namespace fp8::kernels {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins =
    2000;  // about 20 us: longer than the gap between two kernels of one layer, shorter than a wake-up hurts
constexpr int kSpinsAwake = 100000;  // about a millisecond
constexpr int kPiecesPerThread = 4;  // so that a thread that loses its core to another process delays the rest little

using Body = std::function<void(std::int64_t, std::int64_t)>;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

#if defined(__linux__)
/// The CPUs this process was started on. Taken when the library is loaded: a runtime that pins the initial thread later
/// (OMP_PROC_BIND) must neither shrink our count nor crowd our workers onto its one core.
class StartMask {
 public:
  StartMask() {
    for (std::size_t words = 16; words <= 1024; words *= 2) {  // 1024 .. 65536 CPUs
      mask_.assign(words, 0);
      if (sched_getaffinity(0, words * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(mask_.data())) == 0) return;
    }
    mask_.clear();
  }
  int count() const {
    int cpus = 0;
    for (unsigned long word : mask_) cpus += __builtin_popcountl(word);
    return cpus;
  }
  void apply_to_this_thread() const {
    if (mask_.empty()) return;
    // A refusal (a sandbox, CPUs taken away since) leaves the inherited mask, which also works.
    (void)sched_setaffinity(0, mask_.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(mask_.data()));
  }

 private:
  std::vector<unsigned long> mask_;
};
const StartMask& start_mask() {
  static const StartMask* mask = new StartMask;
  return *mask;
}
[[maybe_unused]] const StartMask& loaded = start_mask();
#endif

int default_threads() {
#if defined(__linux__)
  const int cpus = start_mask().count();
#else
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
#endif
  return std::clamp(cpus, 1, kMaxThreads);
}

struct Job {
  Job(const Body& b, std::int64_t size, std::int64_t piece) : body(b), n(size), step(piece) {}

  const Body& body;
  const std::int64_t n, step;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // written by the thread that sets `failed`, read after all have left

  void run() {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const std::int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
        if (begin >= n) return;
        body(begin, std::min(n, begin + step));
      }
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
};

thread_local bool inside_parallel_for = false;

struct InsideMark {
  InsideMark() { inside_parallel_for = true; }
  ~InsideMark() { inside_parallel_for = false; }
};

class Pool {
 public:
  static Pool& instance() {
    static Pool* pool = new Pool;
    return *pool;
  }

  std::atomic<int> threads{default_threads()};
  std::atomic<int> awake{0};  ///< AwakeWorkers that live

  /// False if another caller is using the workers.
  bool run(Job& job, int helpers) {
    std::unique_lock caller(caller_mutex_, std::try_to_lock);
    if (!caller.owns_lock()) return false;
    {
      std::lock_guard lock(mutex_);
      start_workers(helpers);
      job_ = &job;
      places_ = helpers;
      epoch_.fetch_add(1, std::memory_order_release);
    }
    for (int i = 0; i < helpers; ++i) wake_.notify_one();
    {
      InsideMark mark;
      job.run();
    }
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    for (int spin = 0; inside_ > 0 && spin < kSpins; ++spin) {
      lock.unlock();
      relax();
      lock.lock();
    }
    left_.wait(lock, [&] { return inside_ == 0; });
    return true;
  }

 private:
  void start_workers(int wanted) {
    while (started_ < wanted) {
      try {
        std::thread([this] { work(); }).detach();
      } catch (const std::system_error&) {
        return;  // no more threads to be had: those that exist and the caller do the work
      }
      ++started_;
    }
  }

  int most_spins() const { return awake.load(std::memory_order_relaxed) > 0 ? kSpinsAwake : kSpins; }

  void work() {
#if defined(__linux__)
    start_mask().apply_to_this_thread();
#endif
    InsideMark mark;
    std::uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen && spin < most_spins(); ++spin) relax();
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
      seen = epoch_.load(std::memory_order_relaxed);
      if (job_ == nullptr || places_ == 0) continue;
      Job& job = *job_;
      --places_;
      ++inside_;
      lock.unlock();
      job.run();
      lock.lock();
      if (--inside_ == 0) left_.notify_one();
    }
  }

  std::mutex caller_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::atomic<std::uint64_t> epoch_{0};
  Job* job_ = nullptr;  // open for entry while not null
  int places_ = 0;      // workers that may still enter
  int inside_ = 0;      // workers in the job
  int started_ = 0;
};

}  // namespace

int num_threads() { return Pool::instance().threads.load(std::memory_order_relaxed); }

void set_num_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads)
    io::fail<std::invalid_argument>("set_num_threads: found {}, allowed 1 to {}", threads, kMaxThreads);
  Pool::instance().threads.store(threads, std::memory_order_relaxed);
}

AwakeWorkers::AwakeWorkers() { Pool::instance().awake.fetch_add(1, std::memory_order_relaxed); }
AwakeWorkers::~AwakeWorkers() { Pool::instance().awake.fetch_sub(1, std::memory_order_relaxed); }

void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const int threads = inside_parallel_for ? 1 : num_threads();
  if (threads == 1 || n <= grain) return body(0, n);

  const std::int64_t grains = (n - 1) / grain + 1;
  const std::int64_t per_piece = std::max<std::int64_t>(1, grains / (std::int64_t{threads} * kPiecesPerThread));
  Job job(body, n, std::min(n, per_piece * grain));
  const std::int64_t pieces = (n - 1) / job.step + 1;
  const int helpers = static_cast<int>(std::min<std::int64_t>(threads, pieces)) - 1;
  if (helpers == 0 || !Pool::instance().run(job, helpers)) {
    InsideMark mark;
    return body(0, n);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fp8::kernels
