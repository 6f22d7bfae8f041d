// SPDX-License-Identifier: Apache-2.0
// What makes the library's observers: each is a file of this folder. Rows in observer_types.cpp and registry.cpp.
#pragma once
#include <memory>

#include "fp8/measure/observers/observer.h"

namespace fp8::measure {

std::unique_ptr<Observer> make_maxabs(const ObserverContext& context);
std::unique_ptr<Observer> make_maxabs_per_channel(const ObserverContext& context);
std::unique_ptr<Observer> make_save(const ObserverContext& context);
std::unique_ptr<Observer> make_shape(const ObserverContext& context);
std::unique_ptr<Observer> make_histogram(const ObserverContext& context);
std::unique_ptr<Observer> make_percentile(const ObserverContext& context);
std::unique_ptr<Observer> make_mse(const ObserverContext& context);
std::unique_ptr<Observer> make_kl(const ObserverContext& context);

}  // namespace fp8::measure
