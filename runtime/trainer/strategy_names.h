// SPDX-License-Identifier: Apache-2.0
// How the ranks of a training come to the same gradients. No torch here.
#pragma once
#include <array>
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::trainer {

enum class StrategyKind : std::uint8_t { automatic, hpu_single, hpu_parallel, hpu_ddp, fast_ddp };

struct StrategyName {
  StrategyKind value;
  const char* name;
  const char* what;
};
constexpr auto names_of(StrategyKind) {
  using enum StrategyKind;
  return std::to_array<StrategyName>(
      {{automatic, "auto", "hpu_single for one rank, hpu_parallel for more"},
       {hpu_single, "hpu_single", "one rank, no messages"},
       {hpu_parallel, "hpu_parallel", "one f32 message after backward: the mean, rounded once"},
       {hpu_ddp, "hpu_ddp", "buckets of gradients, sent while backward runs (c10d's Reducer)"},
       {fast_ddp, "fast_ddp", "one message after backward, in bf16 unless told otherwise"}});
}

}  // namespace fp8::trainer
