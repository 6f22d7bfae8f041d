// SPDX-License-Identifier: Apache-2.0
// Who takes part in a group of processes, and where they meet.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fp8::runtime::distributed {

struct GroupOptions {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  ///< rank 0 listens at host:port
  std::uint16_t port = 29500;
  std::string file =
      {};  ///< if set they meet in this file instead, which no other run may have used; its folder must exist
  bool launcher_serves = false;  ///< rank 0 does not serve the meeting: torchrun's agent does, or who asked for it
  int attempt = 0;               ///< restarts so far; keys of dead attempts are not this one's
  std::string secret = {};       ///< what all ranks know and nobody else does, 16 characters or more; "": none
  std::string said_by = {};      ///< the variables that rank, size and place are from; "" where they are not
  bool agree = false;            ///< before each call of ProcessGroup the ranks compare what they are about to do
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of meeting, and of each call; 1 ms to 30 days
  /// Asked while a call waits: true, and this process was told to end. Where it then waits for ranks that wait in
  /// another call, are silent or have left, give_up(why) is called within seconds, by a thread of the group. Nothing
  /// ends a call of Gloo before its timeout, so give_up() must end the process.
  std::function<bool()> stop_asked = {};
  std::function<void(const std::string& why)> give_up = {};
};

/// From the variables that launchers set: rank and size as io::launched() finds them; alone (size 1) where no launcher
/// says otherwise. Where they meet: MASTER_ADDR and MASTER_PORT, else
///
///   srun     the first host of SLURM_STEP_NODELIST (SLURM_JOB_NODELIST), 15000 + the last four digits of SLURM_JOB_ID;
///            also where PMI_RANK and PMI_SIZE are read and Slurm's say the same (srun --mpi=pmi2)
///   mpirun   127.0.0.1 where OMPI_COMM_WORLD_LOCAL_SIZE or MPI_LOCALNRANKS says that all are on one machine, and
///            15000 + a checksum of PMIX_NAMESPACE, the job's name, modulo 10000
///
/// FP8_JOB_SECRET is the secret. TORCHELASTIC_USE_AGENT_STORE: torchrun serves the meeting; TORCHELASTIC_RESTART_COUNT
/// is the attempt. Throws c10::Error naming the variable, what it holds and what is allowed.
GroupOptions group_options_from_environment();

/// "n1" of "n[1-3,7],m2"; none where it is no such list.
std::optional<std::string> first_host(std::string_view slurm_list);

/// Throws c10::Error "[GroupOptions] rank: found 2, allowed: 0 to 1".
void check(const GroupOptions& options);

}  // namespace fp8::runtime::distributed
