// SPDX-License-Identifier: Apache-2.0
// The observers that come with the library (observer.h says what each does).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fp8/measure/observers/observer.h"

namespace fp8::measure {

/// In the order of messages and help.
const std::vector<std::pair<std::string, ObserverType>>& built_in_observer_types();

std::unique_ptr<Observer> make_maxabs(const ObserverContext& context);
std::unique_ptr<Observer> make_maxabs_per_channel(const ObserverContext& context);
std::unique_ptr<Observer> make_shape(const ObserverContext& context);
/// Parameter save_mib: how much is saved in all (default 1024); after that only amax is kept.
std::unique_ptr<Observer> make_save(const ObserverContext& context);
/// Parameter bins (16 to 65536, default 2048); percentile (0 < p <= 100, default 99.99).
std::unique_ptr<Observer> make_histogram(const ObserverContext& context);
std::unique_ptr<Observer> make_percentile(const ObserverContext& context);
std::unique_ptr<Observer> make_mse(const ObserverContext& context);
std::unique_ptr<Observer> make_kl(const ObserverContext& context);

/// Throws io::Error "WHERE: expected ..., found ...".
[[noreturn]] void bad_state(const std::string& where, const std::string& expected, const io::Json& found);

}  // namespace fp8::measure
