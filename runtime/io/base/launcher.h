// SPDX-License-Identifier: Apache-2.0
// Which process of several this is, from the variables that launchers set: the one reader of them. No torch here.
//
//   torchrun     WORLD_SIZE; RANK, else NODE_RANK (or GROUP_RANK; default 0) * LOCAL_WORLD_SIZE (default WORLD_SIZE)
//                                     + LOCAL_RANK
//   Open MPI     OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK
//   PMI          PMI_SIZE, PMI_RANK                             MPICH, Intel MPI, srun --mpi=pmi2
//   Slurm        SLURM_STEP_NUM_TASKS, SLURM_PROCID             srun
//
// The first that names more than one process counts: a launcher that is started by another stands before it, and has
// no fewer processes. Two that name as many but other ranks contradict each other (torchrun alone, TORCHELASTIC_RUN_ID,
// may number its machines anew).
// SLURM_NTASKS says nothing here: the one process of an sbatch script or an salloc shell sees it too (and SLURM_PROCID
// with it). Nor do MASTER_ADDR and MASTER_PORT: they say where ranks would meet and not that there are some, and images
// and notebooks leave them behind. Any other half of a family is an error, NODE_RANK without WORLD_SIZE too: who is one
// of several and does not know it would write what the others write. An empty variable is one that is not set.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fp8::io {

constexpr int kMaxRanks = 65536;

struct Launched {
  int rank = 0, size = 1;                    ///< 0 <= rank < size <= kMaxRanks
  std::string rank_variable, size_variable;  ///< that said so

  /// "this is rank 1 of 2, as RANK and WORLD_SIZE say"
  std::string text() const;
};

/// Looks a variable up: its value, or nullptr.
using GetVariable = std::function<const char*(const char*)>;

/// None without a launcher. Of size 1 only by RANK (or LOCAL_RANK) and WORLD_SIZE. Throws io::Error "environment
/// variable 'RANK': found 'x', allowed: an integer from 0 to 3 (WORLD_SIZE is 4)", also for a rank without its size,
/// a size without its rank, and two launchers that contradict each other.
std::optional<Launched> launched(const GetVariable& get);
/// Of this process' environment.
std::optional<Launched> launched();
/// No launcher started it, or it is rank 0: who writes where one of several processes does. Throws as launched().
bool is_first_process();

/// All variables named above.
const std::vector<std::string>& launcher_variables();

}  // namespace fp8::io
