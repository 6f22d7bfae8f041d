// SPDX-License-Identifier: Apache-2.0
// What the rows of registry.cpp are made of: each observer is a file of this folder.
#pragma once
#include <memory>

#include "fp8/configs/observer_keys.h"
#include "fp8/measure/observers/histogram.h"
#include "fp8/measure/observers/observer.h"

namespace fp8::measure {

inline constexpr configs::ObserverParameter kBins{"bins", Histogram::kDefaultBins, 16, 65536, /*integer=*/true};
inline constexpr configs::ObserverParameter kPercentile{"percentile", 99.99, 0, 100};
/// How much is saved in all; after that only amax is kept.
inline constexpr configs::ObserverParameter kSaveMib{"save_mib", 1024, 0, 1e9};

std::unique_ptr<Observer> make_maxabs(const ObserverContext& context);
std::unique_ptr<Observer> make_maxabs_per_channel(const ObserverContext& context);
std::unique_ptr<Observer> make_save(const ObserverContext& context);
std::unique_ptr<Observer> make_shape(const ObserverContext& context);
std::unique_ptr<Observer> make_histogram(const ObserverContext& context);
std::unique_ptr<Observer> make_percentile(const ObserverContext& context);
std::unique_ptr<Observer> make_mse(const ObserverContext& context);
std::unique_ptr<Observer> make_kl(const ObserverContext& context);

}  // namespace fp8::measure
