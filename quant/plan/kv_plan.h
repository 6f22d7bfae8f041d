// SPDX-License-Identifier: Apache-2.0
// Scales of key-value caches, for checkpoint files and for models in memory alike. No torch here.
//
//   tensor    scale_inv    = f32(amax of all heads / fp8_max)
//   head      scale_inv[h] = f32(amax[h] / fp8_max)           with a QUANT_CONFIG: its method instead of the formula
//
// amax is measured of what a cache stores, keys after the rotary embedding ("ATTENTION.k_cache") and values
// ("ATTENTION.v_cache"). A scale is never made up: engines take a missing one for 1.0, which cuts off whatever passes
// fp8_max and loses the bits of small values.
#pragma once
#include <string>
#include <vector>

#include "fp8/quant/plan/plan.h"
#include "fp8/quant/scheme/kv_scales.h"

namespace fp8::quant {

/// The attention modules among `modules` (names of those with a weight): parents of k_proj, or of one projection for q,
/// k and v (qkv_proj, query_key_value, W_pack, c_attn). In the order of their first mention.
std::vector<std::string> attention_modules(const std::vector<std::string>& modules);

/// The nodes of attention modules by the names that our models and optimum-habana's give them, which no checkpoint
/// shows: caches, and what either way to write attention has ("fused": fused_scaled_dot_product_attention; "eager":
/// matmul_qk, softmax, matmul_av).
std::vector<NodeInfo> attention_nodes(const std::vector<std::string>& attention);

/// What decides the numbers of the caches: E4M3 of options.dialect, or the QUANT_CONFIG's format and convention.
Numbers kv_numbers(const PlanOptions& options);

/// Scales of the caches of every module of `attention`, made of options.measurements as options.kv_scales says. Throws
/// io::Error naming the module: it was not measured (and a config's method has no fixed value), only zeros were (a head
/// of zeros takes the scale of the cache's largest head, and `warnings` says so), or one value where one per head is
/// asked for; and if there is no attention module.
std::vector<KvScales> plan_kv_cache(const std::vector<std::string>& attention, const PlanOptions& options,
                                    std::vector<std::string>& warnings);

/// Those of one cache ("ATTENTION.k_cache"): one, or one per head.
std::vector<float> kv_scale_inv(const std::string& module, const PlanOptions& options,
                                std::vector<std::string>& warnings);

}  // namespace fp8::quant
