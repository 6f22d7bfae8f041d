// SPDX-License-Identifier: Apache-2.0
// The value of each variable in force and its source, the first of these that exists. No torch here.
//
//   call          a function of the API: set_memory_limit(), set_lists(), ScopedSimdLevel, DeviceKindScope, ...
//   option        of the command line: --threads
//   config file   a QUANT_CONFIG: its dump_stats_path stands for HABANA_LOGS
//   environment   the process's, at the moment of the question
//   default       as the table says
//
// Readers of a setting do not look here: they already have it. Code that sets a flag past the environment reports it
// with override_flag() if nothing keeps the setting, or answers through a FlagOwner if an object keeps it.
#pragma once
#include <utility>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/base/environment.h"

namespace fp8::io {

enum class FlagSource : std::uint8_t { default_value, environment, config_file, option, call };
constexpr auto names_of(FlagSource) {
  return names_up_to<FlagSource::call>("default", "environment", "config file", "option", "call");
}
using fp8::name_of;

/// A value that holds instead of the environment's.
struct FlagSetting {
  std::string value;
  FlagSource source = FlagSource::call;
  std::string by;  ///< "--threads", "set_memory_limit()", the path of the config file
};

/// From now on, until it is said anew; nullopt: the environment's again. Throws std::logic_error where the table has no
/// such row.
void override_flag(std::string_view name, std::optional<FlagSetting> setting);

/// A static object of the source that keeps such a setting anyway. `ask`: none where the environment's value holds; on
/// the thread that asks. What it says stands before what override_flag() was told.
class FlagOwner {
 public:
  using Ask = std::optional<FlagSetting> (*)();
  FlagOwner(const char* name, Ask ask);
};

struct Flag {
  const Variable* row;
  std::string value;  ///< of a default: as the table says it
  FlagSource source = FlagSource::default_value;
  std::string by;  ///< "" for the environment and the default

  /// "environment", "option: --threads".
  std::string source_text() const;
};

class RuntimeFlags {
 public:
  /// As they are now. Values are not judged: problem_of().
  static RuntimeFlags from_env();

  /// In the order of the table.
  const std::vector<Flag>& all() const& { return flags_; }
  std::vector<Flag> all() && { return std::move(flags_); }
  /// Throws std::logic_error where the table has no such row.
  const Flag& operator[](std::string_view name) const;

 private:
  std::vector<Flag> flags_;
};

}  // namespace fp8::io
