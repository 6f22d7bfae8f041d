// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/process_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <climits>
#include <filesystem>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::runtime::distributed {
namespace {

using io::kMaxRanks;

/// The value, checked by its rule; nullptr where it is not set.
const char* variable(const char* name) {
  const char* text = io::environment_value(name);
  if (text == nullptr) return nullptr;
  const std::string problem = io::environment_problem(name);
  TORCH_CHECK(problem.empty(), "[process group] ", problem);
  return text;
}

/// 15000 + n mod 10000, of decimal digits or of any other text by its hash.
std::uint16_t port_of(std::string_view job) {
  const std::string_view last = job.substr(job.size() - std::min<std::size_t>(job.size(), 4));
  if (!job.empty() && job.find_first_not_of("0123456789") == std::string_view::npos)
    return static_cast<std::uint16_t>(15000 + io::parse_integer(last, 0, 9999).value());
  io::Fnv hash;
  hash.add(job.data(), job.size());
  return static_cast<std::uint16_t>(15000 + hash.value() % 10000);
}

struct Place {
  std::string host, said_by;
};

/// srun, by its own variables or by PMI's that say the same (srun --mpi=pmi2).
bool is_of_slurm(const io::Launched& process) {
  if (process.rank_variable == "SLURM_PROCID") return true;
  const char *rank = variable("SLURM_PROCID"), *size = variable("SLURM_STEP_NUM_TASKS");
  return process.rank_variable == "PMI_RANK" && rank != nullptr && size != nullptr &&
         rank == std::to_string(process.rank) && size == std::to_string(process.size);
}

/// Without MASTER_ADDR.
std::optional<Place> host_of_launcher(const io::Launched& process) {
  if (is_of_slurm(process)) {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
      const char* list = variable(name);
      if (list == nullptr) continue;
      const auto host = first_host(list);
      TORCH_CHECK(host.has_value(), "[process group] ", name, ": found ", io::in_quotes(list),
                  ", allowed: hosts as Slurm writes them, n[1-3],m7");
      return Place{*host, name};
    }
  }
  for (const auto& [rank_variable, local_size] :
       {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, {"PMI_RANK", "MPI_LOCALNRANKS"}}) {
    const char* here = process.rank_variable == rank_variable ? variable(local_size) : nullptr;
    if (here != nullptr && std::to_string(process.size) == here) return Place{"127.0.0.1", local_size};
  }
  return std::nullopt;
}

/// Without MASTER_PORT: the variable that names the job, so that two jobs on one machine do not meet.
const char* job_variable(const io::Launched& process) {
  return is_of_slurm(process) ? "SLURM_JOB_ID" : "PMIX_NAMESPACE";
}

void find_place(const io::Launched& process, GroupOptions& options) {
  const std::string because = " (" + process.size_variable + " is " + std::to_string(options.size) +
                              "); all ranks need the same, as in mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500";
  if (const char* host = variable("MASTER_ADDR")) {
    options.host = host;
    options.said_by += ", MASTER_ADDR";
  } else {
    const auto place = host_of_launcher(process);
    TORCH_CHECK(place.has_value(), "[process group] MASTER_ADDR: found none, allowed: the host of rank 0", because);
    options.host = place->host;
    options.said_by += ", " + place->said_by;
  }
  const char* job = nullptr;
  if (const char* port = variable("MASTER_PORT")) {
    options.port = static_cast<std::uint16_t>(io::parse_integer(port, 1, 65535).value());
    options.said_by += ", MASTER_PORT";
  } else if (process.rank_variable != "RANK" && (job = variable(job_variable(process))) != nullptr) {
    options.port = port_of(job);
    options.said_by += std::string(", ") + job_variable(process);
  } else {
    TORCH_CHECK(false, "[process group] MASTER_PORT: found none, allowed: 1 to 65535", because);
  }
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] == ']') return std::nullopt;
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t end = list.find(']', i);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view numbers = list.substr(i + 1, end - i - 1);
    const std::string_view number = numbers.substr(0, numbers.find_first_of(",-"));
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    host += number;
    i = end;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

GroupOptions group_options_from_environment() {
  GroupOptions options;
  std::optional<io::Launched> process;
  try {
    process = io::launched();
  } catch (const io::Error& error) {
    TORCH_CHECK(false, "[process group] ", error.what());
  }
  if (!process.has_value()) return options;
  options.rank = process->rank;
  options.size = process->size;
  options.said_by = process->rank_variable + ", " + process->size_variable;
  if (options.size == 1) return options;
  find_place(*process, options);
  if (const char* secret = variable("FP8_JOB_SECRET")) options.secret = secret;
  if (const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE"))
    options.launcher_serves = *agent == '1' || *agent == 't' || *agent == 'T';
  if (const char* attempt = variable("TORCHELASTIC_RESTART_COUNT"))
    options.attempt = static_cast<int>(io::parse_integer(attempt, 0, INT_MAX).value());
  return options;
}

void check(const GroupOptions& options) {
  TORCH_CHECK(options.size >= 1 && options.size <= kMaxRanks, "[GroupOptions] size: found ", options.size,
              ", allowed: 1 to ", kMaxRanks);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.size, "[GroupOptions] rank: found ", options.rank,
              ", allowed: 0 to ", options.size - 1);
  const auto longest = std::chrono::hours(24 * 30);
  TORCH_CHECK(options.timeout >= std::chrono::milliseconds(1) && options.timeout <= longest,
              "[GroupOptions] timeout: found ", options.timeout.count(), " ms, allowed: 1 ms to 30 days");
  if (options.size == 1) return;
  TORCH_CHECK(options.secret.empty() || options.secret.size() >= 16, "[GroupOptions] secret: found one of ",
              options.secret.size(),
              " characters, allowed: 16 or more (FP8_JOB_SECRET; openssl rand -hex 16 makes one)");
  if (options.file.empty()) {
    TORCH_CHECK(!options.host.empty(), "[GroupOptions] host: found \"\", allowed: a name or address");
    TORCH_CHECK(options.port != 0, "[GroupOptions] port: found 0, allowed: 1 to 65535");
    return;
  }
  const auto folder = std::filesystem::absolute(options.file).parent_path();
  TORCH_CHECK(std::filesystem::is_directory(folder), "[GroupOptions] file: found ", io::in_quotes(options.file),
              ", allowed: a path in a folder that exists");
}

}  // namespace fp8::runtime::distributed
