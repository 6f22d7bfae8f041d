// SPDX-License-Identifier: Apache-2.0
// Batches of a dataset, made ahead of time by threads. What a batch holds is a function of (dataset, options, epoch,
// number) alone: not of the number of threads, of what was read before, or of where training began.
//
//   data::DataLoader train(std::make_shared<data::ImageFolder>("train", transforms),
//                          {.batch_size = 32, .shuffle = true, .num_workers = 4});
//   trainer.fit(module, train);
//
// num_workers threads make up to prefetch_factor * num_workers batches ahead of the calls for them, in the order in
// which they will be asked for; seek() and deal() to another place leave those behind. An error of a sample comes where
// its batch would have come; after it next() gives nothing until the next seek().
#pragma once
#include <ATen/core/Generator.h>
#include <sys/types.h>

#include <atomic>
#include <deque>
#include <exception>
#include <thread>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/trainer/registry.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::data {

// Samples with numbers, and the random numbers of one sample.

/// A number below n, which is at least 1, every one equally likely. next: gives 64 random bits.
/// std::uniform_int_distribution differs between standard libraries.
template <class Next>
std::uint64_t random_below(std::uint64_t n, Next&& next) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t x;
  do x = next();
  while (x >= limit);
  return x % n;
}

/// Random numbers for one sample in one epoch: a function of (seed, epoch, index), for any thread at any time.
class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
      : seed_(kernels::splitmix64(kernels::splitmix64(seed, static_cast<std::uint64_t>(epoch)),
                                  static_cast<std::uint64_t>(index))) {}

  std::uint64_t next() { return kernels::splitmix64(seed_, drawn_++); }
  /// In [0, 1), in steps of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::uint64_t below(std::uint64_t n) {
    return random_below(n, [this] { return next(); });
  }
  /// For LibTorch's functions: at::randn({3}, random.generator()).
  at::Generator generator();

 private:
  std::uint64_t seed_, drawn_ = 0;
};

/// Called from several threads at once. Random numbers come from `random` alone: LibTorch's default generator is the
/// training's, and what it gives to a thread depends on the others.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The tensors of sample `index`, below size(). Those of one batch have the same dtypes and sizes.
  virtual std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const = 0;
  /// Messages name it beside the number of a sample: its file. Empty: nothing.
  virtual std::string name_of(std::int64_t /*index*/) const { return {}; }
  /// The number that its loss is averaged over; 0: its loss is one number.
  virtual std::int64_t tokens_of(std::int64_t /*index*/) const { return 0; }
};

/// [n, A], [n, B] ... as samples [A], [B] ...: views of these tensors. Throws std::invalid_argument: none, or of
/// different lengths.
class TensorDataset : public Dataset {
 public:
  explicit TensorDataset(std::vector<at::Tensor> tensors);
  std::int64_t size() const override { return tensors_[0].size(0); }
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override;

 private:
  std::vector<at::Tensor> tensors_;
};

// Samples side by side.

using Sample = std::vector<at::Tensor>;
using Collate = std::function<std::vector<at::Tensor>(const std::vector<Sample>&)>;

/// Tensors [A] of B samples as [B, A], contiguous on the CPU, in pinned memory if asked for. Throws
/// std::invalid_argument where samples differ in number, dtype or sizes of their tensors, or lie on a device;
/// `name_of(i)` is what the message calls sample i.
std::vector<at::Tensor> stack_samples(const std::vector<Sample>& samples, bool pinned,
                                      const std::function<std::string(std::size_t)>& name_of);

// The order of an epoch's samples, and which of them a rank has in a batch. No torch here.
//
//   position in the order   0 1 2 3 | 4 5 6 7 | 8 9        batches of 4: 0, 1, 2, the last one smaller
//   LastBatch::drop         0 1 2 3 | 4 5 6 7
//   LastBatch::fill         0 1 2 3 | 4 5 6 7 | 8 9 0 1    the first samples once more: all batches have one size
//   two ranks, batch 0      0 1 0 1   0 1 0 1              the samples of as many batches as there are ranks in turn

using trainer::LastBatch;

/// 0 to count - 1: as they are, or a permutation that is a function of (count, seed, epoch) alone. It is the one of
/// std::mt19937_64 from std::seed_seq{seed, seed >> 32, epoch}, the same with every standard library.
std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch);

/// `count` positions of an order: first, first + step, ...
struct Share {
  std::int64_t first = 0, step = 1, count = 0;
};

class BatchPlan {
 public:
  /// multiple: without `keep` an epoch has a multiple of so many samples; 1, or a multiple of batch_size.
  BatchPlan(std::int64_t samples, std::int64_t batch_size, LastBatch last, std::int64_t multiple);

  std::int64_t batches() const { return batches_; }
  /// Of the `ranks` batches from number `batch` on, what `rank` has; count 0 where nothing is left for it. Positions
  /// from the number of samples on begin anew.
  Share share(std::int64_t batch, int rank = 0, int ranks = 1) const;

 private:
  std::int64_t batch_size_, batches_, samples_;
};

// Threads that make batches. Waiting threads sleep; results are taken in any order that the owner likes. No torch here.
//
// A thread can't be ended from outside. What must not wait for one for ever lets go of it: the thread then keeps what
// it uses (the pool's state, its job, and through that the dataset), and ends where it comes back.
//
// A process that forks has none of the threads in its child. The child's calls throw, and its destructor leaves
// everything as it is: mutexes and threads of the parent must not be touched there.

struct PoolState;

/// One piece of work. `work` stores its result itself; what it throws is in `error`. Both may be read once the job is
/// done (WorkerPool::wait).
struct Job {
  std::function<void(Job&)> work;
  std::atomic<std::int64_t> at{-1};  ///< how far it is, for messages; the work sets it
  std::exception_ptr error;

 private:
  friend struct PoolState;
  friend class WorkerPool;
  enum class State : std::uint8_t { waiting, running, done } state = State::waiting;
};

class WorkerPool {
 public:
  /// Throws std::runtime_error where the system gives no more threads.
  explicit WorkerPool(int threads);
  /// stop(5).
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Jobs begin in the order in which they are added.
  void add(const std::shared_ptr<Job>& job);
  /// Takes back one that has not begun; another runs on, and its result is dropped.
  void drop(const std::shared_ptr<Job>& job);
  /// Returns true if the job is done, after `seconds` at most (0: without limit).
  bool wait(const Job& job, double seconds);
  /// Nothing more begins. Returns true if all threads have ended within `seconds`; the others are detached. Jobs that
  /// they are at: unfinished().
  bool stop(double seconds);
  std::vector<std::shared_ptr<Job>> unfinished() const { return unfinished_; }
  /// Throws std::logic_error in a process that was forked from the pool's.
  void check_process() const;

 private:
  bool is_forked() const;

  std::shared_ptr<PoolState> state_;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<Job>> unfinished_;
  pid_t process_;
};

/// A sample that could not be made: "[data] sample 7 (cat/1.png): ...".
struct SampleError : std::runtime_error {
  SampleError(const std::string& what, std::int64_t index, std::exception_ptr cause)
      : std::runtime_error(what), index(index), cause(std::move(cause)) {}

  std::int64_t index;
  std::exception_ptr cause;  ///< null: none, it takes too long
};

/// The names are those of torch.utils.data.DataLoader.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;  ///< another order in each epoch, drawn from (seed, epoch)
  int num_workers = 0;   ///< 0: the call for a batch makes it
  int prefetch_factor = 2;
  bool pin_memory = false;    ///< batches in pinned memory
  bool non_blocking = false;  ///< of the copy to `device`
  LastBatch last_batch = LastBatch::keep;
  std::int64_t multiple = 1;        ///< of batch_size: what an epoch is whole by, where ranks share it; 1: batch_size
  std::uint64_t seed = 0;           ///< of the order and of the samples' random numbers
  bool persistent_workers = false;  ///< false: threads end with their epoch
  /// Seconds that a batch may take; 0: any time. Also what the end of a loader waits for a thread, then at least 5.
  double timeout = 0;
  c10::Device device = at::kCPU;  ///< of the batches; the thread that asks for them moves them
  Collate collate = {};           ///< of a batch's samples; none: stack_samples()
};

class DataLoader : public trainer::BatchSource {
 public:
  /// Throws std::invalid_argument naming the option, the value and what is allowed.
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);
  /// close(), but that a thread which does not come back is a warning.
  ~DataLoader() override;
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  std::int64_t batches() const override { return plan_.batches(); }
  void seek(std::int64_t epoch, std::int64_t batch) override;
  /// Throws SampleError, with what a dataset threw in it; std::logic_error in a process that was forked after threads
  /// had begun.
  std::optional<trainer::Batch> next() override;
  std::optional<trainer::Batch> deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) override;

  /// Ends the threads; the next batch starts others. Throws SampleError where one is at a sample and does not come
  /// back: it is let go, with the dataset that it reads.
  void close();

  const DataLoaderOptions& options() const { return options_; }
  const Dataset& dataset() const { return *dataset_; }

 private:
  struct Place {
    std::int64_t epoch = 0, batch = 0;
    int rank = 0, ranks = 1;
    bool operator==(const Place&) const = default;
  };
  struct Pending {
    Place place;
    std::shared_ptr<Job> job;
    std::shared_ptr<trainer::Batch> batch;
  };

  /// The batch of a place, and behind it those that lie `step` batches apart.
  trainer::Batch take(const Place& place, std::int64_t step);
  trainer::Batch finish(Pending pending);
  void fill(Place from, std::int64_t step);
  void forget();
  SampleError late(const Job& job, double seconds) const;
  const std::shared_ptr<const std::vector<std::int64_t>>& order_of(std::int64_t epoch);

  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  BatchPlan plan_;
  std::int64_t epoch_ = 0, next_ = 0;    ///< of next()
  std::int64_t last_ = -1, stride_ = 1;  ///< the batch that next() gave last; how far the next seek() is likely to go
  std::int64_t since_seek_ = 0;          ///< calls of next()
  std::int64_t order_epoch_ = -1;
  std::shared_ptr<const std::vector<std::int64_t>> order_;
  std::int64_t step_ = 1;  ///< between pending batches
  std::deque<Pending> pending_;
  std::unique_ptr<WorkerPool> pool_;
};

}  // namespace fp8::data
