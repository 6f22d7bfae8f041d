// SPDX-License-Identifier: Apache-2.0
// Batches of a dataset, made ahead of time by threads. What a batch holds is a function of (dataset, options, epoch,
// number) alone: not of the number of threads, of what was read before, or of where training began.
//
//   data::DataLoader train(std::make_shared<data::ImageFolder>("train", transforms),
//                          {.batch_size = 32, .shuffle = true, .num_workers = 4});
//   trainer.fit(module, train);
//
// num_workers threads make up to prefetch_factor * num_workers batches that nobody has asked for yet, in the order in
// which they will be asked for; seek() and deal() to another place leave those behind. An error of a sample comes where
// its batch would have come; after it next() gives nothing until the next seek().
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fp8/runtime/data/batch_workers.h"
#include "fp8/runtime/data/dataset.h"
#include "fp8/runtime/trainer/batch_source.h"

namespace fp8::data {

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
  int num_workers = 0;   ///< 0: who asks for a batch makes it
  int prefetch_factor = 2;
  bool pin_memory = false;          ///< batches in pinned memory
  bool non_blocking = false;        ///< of the copy to `device`
  bool drop_last = false;           ///< the last batch of an epoch where it is smaller
  std::int64_t multiple = 1;        ///< an epoch has a multiple of so many samples and leaves out the rest
  std::uint64_t seed = 0;           ///< of the order and of the samples' random numbers
  bool persistent_workers = false;  ///< false: threads end with their epoch
  /// Seconds that a batch may take; 0: any time. Also what the end of a loader waits for a thread, then at least 5.
  double timeout = 0;
  c10::Device device = at::kCPU;  ///< where batches go; by the thread that asks for them
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
