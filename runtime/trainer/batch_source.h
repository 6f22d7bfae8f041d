// SPDX-License-Identifier: Apache-2.0
// Where the trainer's batches come from. An epoch is a sequence of batches that is a function of (source, epoch) alone;
// a place in it is (epoch, number of batches taken), which the trainer saves and comes back to.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
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

}  // namespace fp8::trainer
