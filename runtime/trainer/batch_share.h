// SPDX-License-Identifier: Apache-2.0
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
#pragma once
#include <cstdint>

namespace fp8::trainer {

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

}  // namespace fp8::trainer
