// SPDX-License-Identifier: Apache-2.0
// Observers by name, ready to be made; observer_types.h has the table.
//
// One of your own, in force while the registration lives:
//
//   struct FirstCall final : fp8::measure::Observer {
//     std::optional<float> amax;
//     void observe(const fp8::measure::Observed& x) override { if (!amax) amax = x.amax(); }
//     fp8::measure::Amax result() const override { return {amax.value_or(0.0f)}; }
//   };
//   const fp8::measure::ObserverRegistration mine({.name = "first_call", .make = [](const auto&) {
//     return std::make_unique<FirstCall>();
//   }});
//   options.observer = "first_call";   // or "observer": "first_call" in a QUANT_CONFIG
#pragma once
#include <string>

#include "fp8/measure/observers/observer.h"
#include "fp8/measure/observers/observer_types.h"

namespace fp8::measure {

/// The row, with `make`. Throws std::invalid_argument naming those in force if there is none of that name.
ObserverType find_observer(const std::string& name);

}  // namespace fp8::measure
