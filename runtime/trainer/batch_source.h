// SPDX-License-Identifier: Apache-2.0
// Where the trainer's batches come from. An epoch is a sequence of batches that is a function of (source, epoch) alone;
// a place in it is (epoch, number of batches taken), which the trainer saves and comes back to.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fp8::trainer {

struct Batch {
  std::vector<at::Tensor> tensors;  ///< what the module's steps expect, on whatever device it expects them
  std::int64_t samples = 0;         ///< at least 1: an empty batch is an error
  std::int64_t tokens = 0;          ///< what losses are averaged over; 0: the samples
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Batches of every epoch, the last of which may be smaller.
  virtual std::int64_t batches() const = 0;
  /// The next batch will be number `batch` of `epoch`, both counted from 0.
  virtual void seek(std::int64_t epoch, std::int64_t batch) = 0;
  /// Empty past the last batch of the epoch.
  virtual std::optional<Batch> next() = 0;

  /// Of the `ranks` batches from number `batch` of `epoch` on, the samples of one rank: the first for rank 0, the next
  /// for rank 1 and so on, as DistributedSampler deals them; samples 0 where none is left for it. A source that has
  /// whole batches only returns nothing, and each rank takes one of them.
  virtual std::optional<Batch> deal(std::int64_t /*epoch*/, std::int64_t /*batch*/, int /*rank*/, int /*ranks*/) {
    return std::nullopt;
  }
};

// Which batches of a source are whose. A group has one batch for each rank, so W ranks train with batches W times as
// large, of the samples that one process would take next:
//
//   batches of an epoch     0 1 2 | 3 4 5 | 6 7 _      3 ranks, 3 groups; the last rank has no third batch: it runs the
//   rank 1                    1       4       7        epoch's first once more, as DistributedSampler has it, but with
//                                                      weight 0, since one process would not take it either
//
// A source that can deals the samples of a group out one by one (BatchSource::deal).
//
// A run that is resumed on another number of ranks takes the next batch: what is done of that epoch is its offset, less
// whole groups. No torch here.

struct BatchShare {
  int rank = 0, size = 1;
  std::int64_t offset_epoch = -1, offset = 0;  ///< batches before the first group of that epoch; fewer than size

  std::int64_t offset_of(std::int64_t epoch) const { return epoch == offset_epoch ? offset : 0; }
  /// Of an epoch of `batches`.
  std::int64_t groups(std::int64_t epoch, std::int64_t batches) const {
    return (batches - offset_of(epoch) + size - 1) / size;
  }
  /// This rank's batch of a group; past the last for a rank that has none.
  std::int64_t index(std::int64_t epoch, std::int64_t group) const { return taken(epoch, group) + rank; }
  /// Batches that all ranks have taken before a group.
  std::int64_t taken(std::int64_t epoch, std::int64_t group) const { return offset_of(epoch) + group * size; }

  /// The group that begins with batch number `taken` of `epoch`, which has `batches`.
  std::int64_t go_to(std::int64_t epoch, std::int64_t taken, std::int64_t batches) {
    offset_epoch = epoch;
    offset = taken < batches ? taken % size : 0;
    return taken < batches ? taken / size : groups(epoch, batches);
  }
};

// The data of a run, all loops of it. The names are those of Lightning's LightningDataModule.

class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Called by one process of a machine, before the others go on: downloads and conversions.
  virtual void prepare_data() {}
  /// Called once before the first of the four below.
  virtual void setup() {}
  /// Null: there is none. A batch's tensors may lie on the CPU: who runs the loop brings them to the network.
  virtual std::unique_ptr<BatchSource> train_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> val_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> test_dataloader() { return nullptr; }
  virtual std::unique_ptr<BatchSource> predict_dataloader() { return nullptr; }
};

}  // namespace fp8::trainer
