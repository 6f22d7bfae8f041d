// SPDX-License-Identifier: Apache-2.0
// One table of all environment variables: what each does, which values it takes, which folder reads it. Code reads a
// variable by its name in the table. `fp8 doctor --all` prints the table; tools/pages/environment.md lists the rows
// that have an effect. An empty variable counts as not set; runtime_flags.h has the value in force. No torch here.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/base/reach.h"

namespace fp8::io {

struct Variable;

/// The kind of value that a row takes, and the function that knows such a value.
struct Rule {
  const char* type;  ///< "boolean", "choice", "integer", "bytes", "list", "path", "text" or "secret"
  bool (*allows)(const Variable& row, std::string_view value);
  Reach reach = Reach::none;  ///< of a path that the program fp8 follows
};

struct Variable {
  const char* name;
  const char* effect;    ///< its effect, or why it has none
  const char* allowed;   ///< as messages say it: words "0, 1", or what a value is
  const char* fallback;  ///< the value where it is not set
  const char* reader;    ///< the folder that reads it, "LibTorch", or a word for none
  Rule rule;
  bool in_effect = true;  ///< false: it is accepted, and nothing comes of it

  /// Never asked about "".
  bool allows(std::string_view value) const { return rule.allows(*this, value); }
};

/// The table, in the order in which doctor prints it: our own, then the vendor's, which have no effect here.
std::span<const Variable> variables();
/// Variables of the vendor's stack that scripts and containers for it set (vendor_variables.json; names, types and
/// defaults are those of its PyTorch bridge 1.19, of older bridges what scripts still set, of its documentation and of
/// vLLM's for it). They are known and their values are checked, so that a misspelt one is noticed; none has an
/// effect, and each row says why.
std::span<const Variable> vendor_variables();

/// A row for every name that begins so: "PT_HPU_DISABLE_pass_*".
constexpr bool is_family(const Variable& row) { return std::string_view(row.name).ends_with('*'); }
/// Of a family: name is one of its members, "PT_HPU_DISABLE_pass_reinplace_add".
bool is_member(const Variable& row, std::string_view name);
/// Of a family: those of the process, "PT_HPU_DISABLE_pass_a=True, PT_HPU_DISABLE_pass_b=1", sorted; "": none.
std::string members_of_process(const Variable& row);

/// The row of a name. Throws std::logic_error where the table has none.
const Variable& variable(std::string_view name);

/// The process's value; nullptr where the variable is not set or empty. Throws as variable().
const char* environment_value(const char* name);

/// Its value is never shown: "set" stands for it.
bool is_secret(const Variable& row);

/// "FP8_HPU_DEVICES: found 'x', allowed: an integer from 1 to 16"; "" for a value that is allowed.
std::string problem_of(const Variable& row, std::string_view value);
/// problem_of() of the process's value; "" where it is not set.
std::string environment_problem(const char* name);

/// No row has it, and it begins with FP8_, PT_HPU_, PT_TE_ or HABANA_ (FP8_TEST_ is the tests' own), or is a letter or
/// two from a name that is read here: QUANT_CONFG.
bool is_unknown_variable(std::string_view name);
/// The row that an unknown name was meant to be: few letters are wrong. "" where there is none, or none is unknown.
std::string intended_variable(std::string_view name);
/// Returns a message for each unknown variable of the process, sorted, with the known name that is meant, if one is
/// near: "..., did you mean FP8_HPU_DEVICE?". misspelt: those alone.
std::vector<std::string> unknown_variables(bool misspelt = false);

/// "NAME=VALUE" of the process' variables whose names begin with `start`, sorted: names that no table can list, such as
/// the keys of run files (PL_FIT__TRAINER__MAX_STEPS).
std::vector<std::string> environment_entries(std::string_view start);

/// All of `text` as an integer from `low` to `high`.
std::optional<int> parse_integer(std::string_view text, int low, int high);
/// A number of bytes from 1 on: "1e9", "64M", "0.5G" (K, M and G are powers of 1024).
std::optional<std::int64_t> parse_bytes(std::string_view text);

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
