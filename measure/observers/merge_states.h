// SPDX-License-Identifier: Apache-2.0
// The states of observers (states.h), merged by the observers themselves.
#pragma once
#include <string>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/observers/states.h"

namespace fp8::measure {

/// Takes in another rank's or run's states, module by module. Throws io::Error if observer, parameters, or the numbers
/// of a module's tensors differ; `where` (the other's file) stands in its messages.
void merge(ObserverStates& into, const ObserverStates& other, const std::string& where);

/// Puts what the observers make of their states in place of the values of `file`. Modules without a state stay.
void apply(const ObserverStates& states, MeasurementFile& file, const std::string& where);

}  // namespace fp8::measure
