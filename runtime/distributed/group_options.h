// SPDX-License-Identifier: Apache-2.0
// Who takes part in a group of processes, and where they meet.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace fp8::runtime::distributed {

struct GroupOptions {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  ///< rank 0 listens at host:port
  std::uint16_t port = 29500;
  std::string file =
      {};  ///< if set they meet in this file instead, which no other run may have used; its folder must exist
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of meeting, and of each call; 1 ms to 30 days
};

/// From the variables that launchers set: rank and size as io::launched() finds them (torchrun, Open MPI, PMI, Slurm),
/// MASTER_ADDR and MASTER_PORT where there is more than one rank: mpirun and srun set neither. Alone (size 1) where no
/// launcher says otherwise. Throws c10::Error naming the variable, what it holds and what is allowed.
GroupOptions group_options_from_environment();

/// Throws c10::Error "[GroupOptions] rank: found 2, allowed: 0 to 1".
void check(const GroupOptions& options);

}  // namespace fp8::runtime::distributed
