// SPDX-License-Identifier: Apache-2.0
// Scales of a key-value cache. No torch here.
#pragma once
#include <string>
#include <vector>

namespace fp8::quant {

/// Scales of an attention module's key-value cache: scale_inv of keys after the rotary embedding and of values, one
/// each or one per head.
struct KvScales {
  std::string attention;  ///< "model.layers.0.self_attn"
  std::vector<float> k, v;
};

}  // namespace fp8::quant
