// SPDX-License-Identifier: Apache-2.0
// `fp8 quantize --preset NAME`: options of quantize by the names that llm-compressor and serving engines have for them.
#pragma once
#include <array>
#include <cstdint>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::commands {

enum class Preset : std::uint8_t { FP8_DYNAMIC, FP8_STATIC, FP8_BLOCK, FP8_WEIGHT_ONLY, FP8_KV };

struct PresetRow {
  Preset value;
  const char* name;
  const char* options;  ///< what it is short for
  const char* what;
};
constexpr auto names_of(Preset) {
  using enum Preset;
  return std::to_array<PresetRow>({
      {FP8_DYNAMIC, "FP8_DYNAMIC", "--dynamic",
       "a scale for each channel of weights, and for each token of activations, computed at each call; needs no data"},
      {FP8_STATIC, "FP8_STATIC", "--measurements DIR",
       "a scale for each tensor, of activations as fp8 measure has seen them"},
      {FP8_BLOCK, "FP8_BLOCK", "--dynamic --scheme block",
       "a scale for each block of 128 x 128 weights, and for each 128 activations of a token; needs no data"},
      {FP8_WEIGHT_ONLY, "FP8_WEIGHT_ONLY", "--weights-only",
       "weights alone, a scale for each channel; activations stay in high precision"},
      {FP8_KV, "FP8_KV", "--measurements DIR --kv-cache fp8",
       "FP8_STATIC, and keys and values in fp8; with --dynamic or --weights-only those are FP8_KV's activations"},
  });
}

}  // namespace fp8::commands
