// SPDX-License-Identifier: Apache-2.0
// The variables that launchers set, as they were seen: torchrun 2.13, mpirun (Open MPI 4.1.4), mpiexec.hydra (MPICH
// 4.0), srun (Slurm 22.05).
#pragma once
#include <cstdlib>
#include <map>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::test {

using Variables = std::map<std::string, std::string>;

/// By launcher: what rank `rank` of `size` on one machine sees.
inline std::map<std::string, Variables> launchers(int rank, int size) {
  const std::string r = std::to_string(rank), n = std::to_string(size);
  return {{"torchrun",
           {{"RANK", r},
            {"LOCAL_RANK", r},
            {"WORLD_SIZE", n},
            {"LOCAL_WORLD_SIZE", n},
            {"GROUP_RANK", "0"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", "29500"}}},
          {"mpirun",
           {{"OMPI_COMM_WORLD_RANK", r},
            {"OMPI_COMM_WORLD_SIZE", n},
            {"OMPI_COMM_WORLD_LOCAL_RANK", r},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", n},
            {"PMIX_RANK", r}}},
          {"mpiexec", {{"PMI_RANK", r}, {"PMI_SIZE", n}, {"MPI_LOCALRANKID", r}, {"MPI_LOCALNRANKS", n}}},
          {"srun",
           {{"SLURM_PROCID", r},
            {"SLURM_STEP_NUM_TASKS", n},
            {"SLURM_NTASKS", n},
            {"SLURM_LOCALID", r},
            {"SLURM_NODEID", "0"}}}};
}

/// Those variables unset (empty), whatever the machine says.
inline Variables no_launcher() {
  Variables none;
  for (const auto& name : io::launcher_variables()) none[name] = "";
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) none[name] = "";
  return none;
}

/// The launchers' variables as given and no others in this process, for one scope.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const Variables& variables) {
    auto all = no_launcher();
    for (const auto& [name, value] : variables) all[name] = value;
    for (const auto& [name, value] : all) {
      const char* now = std::getenv(name.c_str());
      before_[name] = now != nullptr ? now : "";
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~LauncherEnvironment() {
    for (const auto& [name, value] : before_)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  LauncherEnvironment(const LauncherEnvironment&) = delete;
  LauncherEnvironment& operator=(const LauncherEnvironment&) = delete;

 private:
  Variables before_;
};

}  // namespace fp8::test
