// SPDX-License-Identifier: Apache-2.0
// Every environment variable that counts here, in one table: what it does, which values it takes, who asks for it.
// Readers ask by name, so none reads what the table does not know; `fp8 doctor --all` prints it, tools/README.md what
// has an effect. An empty variable is one that is not set. What is in force in its stead: runtime_flags.h.
// No torch here.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::io {

struct Variable;

/// What kind of value a row takes, and how that is told (variable_rules.h).
struct Rule {
  const char* type;  ///< "boolean", "choice", "integer", "bytes", "list", "path", "text" or "secret"
  bool (*allows)(const Variable& row, std::string_view value);
};

struct Variable {
  const char* name;
  const char* effect;    ///< what it does, or why nothing
  const char* allowed;   ///< as messages say it: words "0, 1", or what a value is
  const char* fallback;  ///< what holds where it is not set
  const char* reader;    ///< the folder that asks for it, "LibTorch" or "nobody"
  Rule rule;
  bool in_effect = true;  ///< false: it is accepted, and nothing comes of it

  /// Never asked about "".
  bool allows(std::string_view value) const { return rule.allows(*this, value); }
};

/// The table, in the order in which doctor prints it: our own, then the vendor's that nobody here reads.
std::span<const Variable> variables();
/// Its row. Throws std::logic_error where the table has none.
const Variable& variable(std::string_view name);

/// The process's value; nullptr where the variable is not set or empty. Throws as variable().
const char* environment_value(const char* name);

/// Its value is for nobody's eyes: it is shown as "set".
bool is_secret(const Variable& row);

/// "FP8_HPU_DEVICES: found 'x', allowed: an integer from 1 to 16"; "" for a value that is allowed.
std::string problem_of(const Variable& row, std::string_view value);
/// The same of the process's value; "" where it is not set.
std::string environment_problem(const char* name);

/// It begins with FP8_, PT_HPU_, PT_TE_ or HABANA_, and no row has it. FP8_TEST_ is the tests' own.
bool is_unknown_variable(std::string_view name);
/// The row that an unknown name was meant to be: few letters are wrong. "" where there is none, or none is unknown.
std::string intended_variable(std::string_view name);
/// "FP8_HPU_DEVCE: nobody reads it, did you mean FP8_HPU_DEVICE?", or "PT_HPU_X: nobody reads it", for each unknown
/// variable of the process, sorted.
std::vector<std::string> unknown_variables();

/// "NAME=VALUE" of the process' variables whose names begin with `start`, sorted: names that no table can list, such as
/// the keys of run files (PL_FIT__TRAINER__MAX_STEPS).
std::vector<std::string> environment_entries(std::string_view start);

/// All of `text` as an integer from `low` to `high`.
std::optional<int> parse_integer(std::string_view text, int low, int high);
/// A number of bytes from 1 on: "1e9", "64M", "0.5G" (K, M and G are powers of 1024).
std::optional<std::int64_t> parse_bytes(std::string_view text);

}  // namespace fp8::io
