// SPDX-License-Identifier: Apache-2.0
// Scale files of several ranks into fewer and back, by the rules of measure/ranks/ranks.h. Of two scale_inv the larger
// one is safe: it overflows for neither rank's values. No torch here.
#pragma once
#include <string>
#include <vector>

#include "fp8/measure/ranks/ranks.h"
#include "fp8/quant/scale_file/scale_file.h"

namespace fp8::quant {

/// As measure::unify(). options.values is taken as `inputs`: a mixture's scales are [hidden states, one per expert].
ScaleFile unify(const std::vector<ScaleFile>& group, const std::vector<std::string>& names, bool experts,
                std::vector<std::string>& warnings);

/// As measure::expand().
ScaleFile expand(const ScaleFile& file, const configs::Rank& rank, const std::string& name);

/// As measure::apply_cache_ranges(); a product's output scale that was the product of its input scales stays so.
std::vector<std::string> apply_cache_ranges(ScaleFile& file);

/// The values as nodes: for tables and comparisons. Of a per-channel weight, the output channels'.
std::vector<measure::Measurement> as_nodes(const ScaleFile& file);

}  // namespace fp8::quant
