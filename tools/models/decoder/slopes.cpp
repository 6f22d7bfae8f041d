// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/slopes.h"

#include <ATen/ops/tensor.h>

#include <bit>
#include <cmath>
#include <vector>

namespace fp8::models {

at::Tensor alibi_slopes(std::int64_t heads, double max) {
  const auto n = static_cast<std::uint64_t>(heads);
  const auto slope = [&](std::uint64_t i, std::uint64_t of) {
    return static_cast<float>(std::exp2(-max * static_cast<double>(i + 1) / static_cast<double>(of)));
  };
  std::vector<float> slopes;
  const std::uint64_t below = std::bit_floor(n), above = std::bit_ceil(n);
  for (std::uint64_t i = 0; i < below; ++i) slopes.push_back(slope(i, below));
  for (std::uint64_t i = 0; slopes.size() < n; i += 2) slopes.push_back(slope(i, above));
  return at::tensor(slopes, at::kFloat);
}

}  // namespace fp8::models
