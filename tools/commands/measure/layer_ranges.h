// SPDX-License-Identifier: Apache-2.0
// Which decoder layers a rank of --pipeline has. No torch here.
#pragma once
#include <cstdint>
#include <vector>

namespace fp8::commands {

/// The first layer of each rank, and the end: ranks + 1 numbers. Each has one layer or more, one after the other, and
/// the one with the most bytes has as few as can be. bytes: of each layer, at least as many layers as ranks; after: of
/// what the last rank has beside its layers.
std::vector<std::int64_t> layer_ranges(const std::vector<std::int64_t>& bytes, std::int64_t after, std::int64_t ranks);

}  // namespace fp8::commands
