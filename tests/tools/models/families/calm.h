// SPDX-License-Identifier: Apache-2.0
// Random weights that bear fp8 as trained ones do.
#pragma once

#include "fp8/tools/models/decoder/description.h"
#include "tools/models/fixture.h"

namespace fp8::models::testing {

/// Each layer adds a quarter of what it added, as those of trained models add little to what is there: random ones
/// that add as much as there is double their own errors. Gives back the config, a DecoderConfig.
inline DecoderConfig calm(Fixture& fixture) {
  const auto parsed = parse_config(fixture.config, "config.json");
  const auto& config = dynamic_cast<const DecoderConfig&>(*parsed.values);
  const auto& names = config.names;
  const bool after = !names.after_attention.empty() && !config.norm_sums;  // norms of what is added scale it
  const auto adds = [&](const std::string& tensor) {
    const std::string module = "." + parent_of(tensor), leaf = "." + leaf_of(tensor);
    if (tensor.find(leaf_of(names.layers) + ".") == std::string::npos) return false;
    if (after)
      return leaf == ".weight" &&
             (module.ends_with("." + names.after_attention) || module.ends_with("." + names.after_mlp));
    for (const std::string& known : {"." + names.out, "." + names.down, std::string(".w2"),
                                     std::string(".output_linear"), std::string(".down_proj")})
      if (module.ends_with(known) || leaf == known || leaf == known + "_bias") return true;
    return false;
  };
  // A router that is near to another choice takes it for less than that.
  fixture.scale(config.moe.experts > 0 ? 0.125 : 0.25, adds, after && config.norm.plus_one);
  return config;
}

}  // namespace fp8::models::testing
