// SPDX-License-Identifier: Apache-2.0
// File names from dump_stats_path (see stats_path.h).
#include "fp8/configs/stats_path.h"

#include <stdexcept>

namespace fp8::configs {
namespace {

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const std::string& suffix) {
  std::filesystem::path result = prefix;
  result += suffix;  // not /=: the prefix is the beginning of the file's name
  return result;
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

}  // namespace

std::string rank_suffix(const std::optional<Rank>& rank) {
  if (!rank) return "";
  if (rank->index < 0 || rank->index >= rank->world) {
    throw std::invalid_argument("rank is " + std::to_string(rank->index) + ", allowed: 0 to world size - 1, which is " +
                                std::to_string(rank->world - 1));
  }
  return "_" + std::to_string(rank->index) + "_" + std::to_string(rank->world);
}

MeasurementFiles measurement_files(const std::filesystem::path& dump_stats_path, const std::string& observer,
                                   const std::optional<Rank>& rank) {
  const std::string stem = "_hooks_" + observer + rank_suffix(rank);
  return {with_suffix(dump_stats_path, stem + ".json"), with_suffix(dump_stats_path, stem + ".npz"),
          with_suffix(dump_stats_path, stem + "_mod_list.json")};
}

ScaleFiles scale_files(const std::filesystem::path& dump_stats_path, const std::string& observer,
                       const std::string& scale_method, const std::optional<Rank>& rank) {
  const std::string stem = "_hooks_" + observer + "_" + upper(scale_method) + rank_suffix(rank);
  return {with_suffix(dump_stats_path, stem + ".json"), with_suffix(dump_stats_path, stem + ".npz")};
}

}  // namespace fp8::configs
