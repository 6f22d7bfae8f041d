// SPDX-License-Identifier: Apache-2.0
// launched() of environment.h.

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/fail.h"

namespace fp8::io {
namespace {

struct Family {
  const char *rank, *size;
  bool rank_alone;  ///< the rank says nothing without the size: the shell of a batch script has it
};
constexpr Family kOthers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
                              {"PMI_RANK", "PMI_SIZE", false},
                              {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true}};

[[noreturn]] void reject(const std::string& variable, const std::string& found, const std::string& allowed) {
  fail<Error>("environment variable '{}': found {}, allowed: {}", variable, found, allowed);
}

bool is_set(const GetVariable& get, const char* variable) {
  const char* text = get(variable);
  return text != nullptr && *text != '\0';
}

/// because: ends the message.
std::optional<int> integer(const GetVariable& get, const char* variable, int low, int high,
                           const std::string& because = "") {
  if (!is_set(get, variable)) return std::nullopt;
  const char* text = get(variable);
  if (const auto value = parse_integer(text, low, high)) return value;
  reject(variable, in_quotes(text), message("an integer from {} to {}{}", low, high, because));
}

std::string is(const char* variable, int value) { return message(" ({} is {})", variable, value); }

/// Ends a message: NODE_RANK, one line for each machine as notebooks and manuals have it, was meant for torchrun.
std::string is_for_torchrun(const GetVariable& get, const std::string& processes) {
  if (!is_set(get, "NODE_RANK")) return "";
  return message(
      "; NODE_RANK is for a launcher: torchrun --nnodes MACHINES --nproc-per-node {} --node-rank {} --master-addr "
      "$MASTER_ADDR --master-port $MASTER_PORT --no-python fp8 ...",
      processes, get("NODE_RANK"));
}

/// RANK and WORLD_SIZE, or what stands for RANK on each of several machines.
std::optional<Launched> torchrun(const GetVariable& get) {
  const auto size = integer(get, "WORLD_SIZE", 1, kMaxRanks);
  if (!size) return std::nullopt;
  if (const auto rank = integer(get, "RANK", 0, *size - 1, is("WORLD_SIZE", *size)))
    return Launched{*rank, *size, "RANK", "WORLD_SIZE"};
  const auto local = integer(get, "LOCAL_RANK", 0, *size - 1, is("WORLD_SIZE", *size));
  if (!local) {
    if (*size == 1) return std::nullopt;
    reject("RANK", message("nothing, but WORLD_SIZE is {}", *size),
           message("0 to {}, or LOCAL_RANK{}", *size - 1, is_for_torchrun(get, std::to_string(*size) + "/MACHINES")));
  }
  const int per_node = integer(get, "LOCAL_WORLD_SIZE", 1, *size, is("WORLD_SIZE", *size)).value_or(*size);
  if (*local >= per_node)
    reject("LOCAL_RANK", in_quotes(get("LOCAL_RANK")),
           message("an integer from 0 to {}{}", per_node - 1, is("LOCAL_WORLD_SIZE", per_node)));
  const char* node_variable = is_set(get, "NODE_RANK") ? "NODE_RANK" : "GROUP_RANK";
  const auto node = integer(get, node_variable, 0, (*size - 1) / per_node, is("WORLD_SIZE", *size));
  const std::int64_t rank = std::int64_t{node.value_or(0)} * per_node + *local;
  if (rank >= *size)
    reject(node_variable, in_quotes(get(node_variable)),
           message("what makes ranks 0 to {}{}", *size - 1, is("WORLD_SIZE", *size)));
  return Launched{static_cast<int>(rank), *size,
                  node.value_or(0) > 0 ? std::string(node_variable) + ", LOCAL_RANK" : "LOCAL_RANK", "WORLD_SIZE"};
}

[[noreturn]] void reject_rank_alone(const char* size_variable, const char* rank_variable, int rank,
                                    const std::string& also = "") {
  reject(size_variable, message("nothing, but {} is {}", rank_variable, rank), message("1 to {}{}", kMaxRanks, also));
}

/// Another family; none where it names one process or nothing.
std::optional<Launched> of_one(const GetVariable& get, const Family& family) {
  const auto [rank_variable, size_variable, rank_alone] = family;
  const auto size = integer(get, size_variable, 1, kMaxRanks);
  if (!size && !rank_alone)  // each process would be rank 0 of 1, and all would write the same files
    if (const auto rank = integer(get, rank_variable, 0, kMaxRanks - 1))
      reject_rank_alone(size_variable, rank_variable, *rank);
  if (size.value_or(1) == 1) return std::nullopt;
  const auto rank = integer(get, rank_variable, 0, *size - 1, is(size_variable, *size));
  if (!rank)
    reject(rank_variable, message("nothing, but {} is {}", size_variable, *size), message("0 to {}", *size - 1));
  return Launched{*rank, *size, rank_variable, size_variable};
}

/// outer: what may have started the launcher of inner.
void check_agreement(const GetVariable& get, const Launched& inner, const Launched& outer) {
  const bool numbers_anew = inner.rank_variable == "RANK" && is_set(get, "TORCHELASTIC_RUN_ID");
  if (outer.size > inner.size)
    reject(inner.size_variable, std::to_string(inner.size),
           message("{}, which {} says, or more", outer.size, outer.size_variable));
  if (!numbers_anew && outer.size == inner.size && outer.rank != inner.rank)
    reject(inner.rank_variable, std::to_string(inner.rank),
           message("{}, which {} says of as many processes", outer.rank, outer.rank_variable));
}

}  // namespace

std::string Launched::text() const {
  return message("this is rank {} of {}, as {} and {} say", rank, size, rank_variable, size_variable);
}

std::optional<Launched> launched(const GetVariable& get) {
  const auto first = torchrun(get);
  auto counts = first && first->size > 1 ? first : std::nullopt;
  for (const Family& family : kOthers) {
    const auto other = of_one(get, family);
    if (!other) continue;
    if (!counts)
      counts = other;
    else
      check_agreement(get, *counts, *other);
  }
  if (counts) return counts;
  if (is_set(get, "WORLD_SIZE")) return first;
  for (const char* variable : {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"}) {
    if (const auto rank = integer(get, variable, 0, kMaxRanks - 1))
      reject_rank_alone("WORLD_SIZE", variable, *rank, is_for_torchrun(get, "PROCESSES"));
  }
  return std::nullopt;
}

std::optional<Launched> launched() { return launched(environment_value); }

bool is_first_process() {
  const auto process = launched();
  return !process.has_value() || process->rank == 0;
}

const std::vector<std::string>& launcher_variables() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> read_here;
    for (const Variable& row : variables()) {
      if (std::string_view(row.reader) == "runtime/io") read_here.emplace_back(row.name);
    }
    return read_here;
  }();
  return names;
}

}  // namespace fp8::io
