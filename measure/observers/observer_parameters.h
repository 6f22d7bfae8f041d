// SPDX-License-Identifier: Apache-2.0
// What observers read of scale_params. No torch here.
#pragma once
#include "fp8/configs/quant_config.h"
#include "fp8/measure/observers/histogram.h"

namespace fp8::measure {

inline constexpr configs::ObserverParameter kBins{"bins", Histogram::kDefaultBins, 16, 65536, /*integer=*/true};
inline constexpr configs::ObserverParameter kPercentile{"percentile", 99.99, 0, 100};
/// How much is saved in all; after that only amax is kept.
inline constexpr configs::ObserverParameter kSaveMib{"save_mib", 1024, 0, 1e9};

}  // namespace fp8::measure
