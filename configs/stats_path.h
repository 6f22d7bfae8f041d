// SPDX-License-Identifier: Apache-2.0
// Names of Intel Neural Compressor's measurement and scale files. With P = dump_stats_path and R = "" or
// "_{rank}_{world}":
//
//   P_hooks_{observer}R.json     P_hooks_{observer}R.npz     P_hooks_{observer}R_mod_list.json       measurements
//   P_hooks_{observer}_{SCALE_METHOD}R.json and .npz                                                 scales
//
// P is a folder and the beginning of a file name: "out/inc_output" gives "out/inc_output_hooks_maxabs.json".
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace fp8::configs {

/// One process of several that measured a model together. 0 <= index < world.
struct Rank {
  int index = 0;
  int world = 1;
};

/// Where measurements go.
struct MeasurementFiles {
  std::filesystem::path json, npz, module_list;
};

/// Where scales go.
struct ScaleFiles {
  std::filesystem::path json, npz;
};

/// "" without a rank, else "_0_8". Throws std::invalid_argument for a rank outside of its world.
std::string rank_suffix(const std::optional<Rank>& rank);

MeasurementFiles measurement_files(const std::filesystem::path& dump_stats_path, const std::string& observer,
                                   const std::optional<Rank>& rank = std::nullopt);

/// scale_method in any case; written in upper case.
ScaleFiles scale_files(const std::filesystem::path& dump_stats_path, const std::string& observer,
                       const std::string& scale_method, const std::optional<Rank>& rank = std::nullopt);

}  // namespace fp8::configs
