// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's samples, and which of them a rank has in a batch. No torch here.
//
//   position in the order   0 1 2 3 | 4 5 6 7 | 8 9        batches of 4: 0, 1, 2 (smaller, or left out: drop_last)
//   two ranks, batch 0      0 1 0 1   0 1 0 1              the samples of as many batches as there are ranks in turn
#pragma once
#include <cstdint>
#include <vector>

namespace fp8::data {

/// 0 to count - 1: as they are, or a permutation that is a function of (count, seed, epoch) alone. It is the one of
/// std::mt19937_64 from std::seed_seq{seed, seed >> 32, epoch}, the same with every standard library.
std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch);

/// `count` positions of an order: first, first + step, ...
struct Share {
  std::int64_t first = 0, step = 1, count = 0;
};

class BatchPlan {
 public:
  BatchPlan(std::int64_t samples, std::int64_t batch_size, bool drop_last)
      : batch_size_(batch_size),
        batches_((samples + (drop_last ? 0 : batch_size - 1)) / batch_size),
        samples_(drop_last ? batches_ * batch_size : samples) {}

  std::int64_t batches() const { return batches_; }
  /// Of the `ranks` batches from number `batch` on, what `rank` has; count 0 where nothing is left for it.
  Share share(std::int64_t batch, int rank = 0, int ranks = 1) const;

 private:
  std::int64_t batch_size_, batches_, samples_;
};

}  // namespace fp8::data
