// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/rank.h"

#include <stdexcept>

namespace fp8::configs {

std::string rank_suffix(const std::optional<Rank>& rank) {
  if (!rank) return "";
  if (rank->index < 0 || rank->index >= rank->world) {
    throw std::invalid_argument("rank is " + std::to_string(rank->index) + ", allowed: 0 to world size - 1, which is " +
                                std::to_string(rank->world - 1));
  }
  return "_" + std::to_string(rank->index) + "_" + std::to_string(rank->world);
}

}  // namespace fp8::configs
