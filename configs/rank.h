// SPDX-License-Identifier: Apache-2.0
// What tells the files of several processes apart that measured a model together. The rest of the names of measurements
// and scales, which begin with dump_stats_path, is in measure/files/stats_files.h.
#pragma once
#include <optional>
#include <string>

namespace fp8::configs {

/// One process of several. 0 <= index < world.
struct Rank {
  int index = 0;
  int world = 1;
};

/// "" without a rank, else "_0_8". Throws std::invalid_argument for a rank outside of its world.
std::string rank_suffix(const std::optional<Rank>& rank);

}  // namespace fp8::configs
