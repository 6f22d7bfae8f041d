// SPDX-License-Identifier: Apache-2.0
// What the ranks of one fit() tell each other beside gradients. Not for users.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/trainer/checkpoint_io.h"

namespace fp8::trainer {

/// One micro-batch on all ranks.
struct MicroBatch {
  struct Part {
    double loss = 0, weight = 0;  ///< weight: tokens, or samples; 0: the batch does not count
    std::int64_t samples = 0;
    bool stop = false;            ///< somebody asked this rank to stop
    bool end = false;             ///< this rank has done enough
    std::uint64_t learning = 0;   ///< which parameters learn (Run::learning())
    std::uint64_t gradients = 0;  ///< of the step before (Run::gradients)
  };
  std::vector<Part> parts;  ///< by rank

  bool finite() const;  ///< every loss is: where one is not, no rank runs backward
  bool stop() const;
  bool end() const;
  bool same_learning() const;
  bool same_gradients() const;
  double weight() const;  ///< of all ranks
  std::int64_t samples() const;
};

/// Every rank calls it after each forward. group: null for one rank.
MicroBatch exchange(const MicroBatch::Part& own, runtime::distributed::ProcessGroup* group);

/// The same for the same values. parameters: held in fp8, too.
std::uint64_t values_checksum(const at::Tensor& tensor);

/// own: what this rank has beside the shared parameters and optimizers (buffers, random numbers, scales): json and
/// tensors of the same names and sizes on each rank. Where a rank has it otherwise than rank 0, rank 0's `state` gets
/// it: tensors "rank.1.NAME", json {"rank_states": {"1": ...}}.
void add_other_ranks(const TrainingState& own, TrainingState& state, runtime::distributed::ProcessGroup& group);

/// In a state that was saved by as many ranks: this rank's own part instead of rank 0's.
void take_own_part(TrainingState& state, int rank, int ranks);

/// What load() returns on rank 0, on every rank, tensors on the CPU; what it throws, too.
TrainingState load_on_all(const std::function<TrainingState()>& load, runtime::distributed::ProcessGroup& group);

}  // namespace fp8::trainer
