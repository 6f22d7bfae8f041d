// SPDX-License-Identifier: Apache-2.0
// The environment variables that Intel Neural Compressor knows, and those of launchers, as typed values. A value that
// does not parse is an io::Error "environment variable 'LOG_LEVEL_INC': found 'x', allowed: an integer from 0 to 6";
// what has no effect on a host says so in `report`.
#pragma once
#include <filesystem>

#include "fp8/runtime/io/base/environment.h"

// The rank that tells apart the files of processes that measured a model together. The rest of the names of
// measurements and scales, which begin with dump_stats_path, is in measure/files/stats_files.h.

namespace fp8::configs {

/// One process of several. 0 <= index < world.
struct Rank {
  int index = 0;
  int world = 1;
};

/// "" without a rank, else "_0_8". Throws std::invalid_argument for a rank outside of its world.
std::string rank_suffix(const std::optional<Rank>& rank);

struct QuantConfig;

/// One variable that is set.
struct EnvironmentVariable {
  std::string name, value;
  bool in_effect = true;
  std::string effect;  ///< its effect here, or why it has none
};

struct Environment {
  std::optional<std::filesystem::path> quant_config;       ///< QUANT_CONFIG
  std::optional<std::string> target_device;                ///< INC_TARGET_DEVICE in lower case: "cpu", "hpu", ...
  bool runtime_scale_patching = false;                     ///< RUNTIME_SCALE_PATCHING
  bool calc_scale_with_cguid = true;                       ///< CALC_SCALE_WITH_CGUID
  bool calc_rounding_with_cguid = false;                   ///< CALC_ROUNDING_WITH_CGUID
  bool vllm_dynamic_kv_quant = false;                      ///< VLLM_DYNAMIC_KV_QUANT is set
  std::optional<std::filesystem::path> scale_method_dump;  ///< SCALE_METHOD_CONFIG_DUMP_PATH
  int measurement_dump_method = 1;                         ///< MEASUREMENT_DUMP_METHOD: 1, 2, 3, 5
  std::optional<int> log_level;                            ///< LOG_LEVEL_INC, else LOG_LEVEL_ALL: 0 to 6
  std::vector<EnvironmentVariable> report;                 ///< those that are set, in the order above

  /// This process among several, as io::launched() finds it in the variables of `report`; none without a launcher.
  /// Throws io::Error.
  std::optional<Rank> process() const;
};

using io::GetVariable;

/// The process's environment. Throws io::Error naming the variable.
Environment environment();
Environment environment(const GetVariable& get);

/// Returns the rank in the names of measurement files; none if the config has seperate_measure_files false.
std::optional<Rank> file_rank(const QuantConfig& config, const Environment& environment);

}  // namespace fp8::configs
