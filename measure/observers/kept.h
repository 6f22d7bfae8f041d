// SPDX-License-Identifier: Apache-2.0
// What scales can be made of: the table (observer_types.h) says what each observer keeps.
#pragma once
#include <string>

#include "fp8/configs/quant_config.h"
#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

/// Why no scale can be made of what the config's observer keeps, though its methods need measurements, whatever the
/// mode says: "FILE: key 'observer': ..."; empty: it can.
std::string observer_problem(const configs::QuantConfig& config);
/// Throws io::Error if there is one.
void refuse_observer_without_amax(const configs::QuantConfig& config);

/// Throws io::Error naming the observer if no scale can be made of the values: shape keeps sizes, save keeps tensors
/// for a look at them. Or naming a module of which maxabs has several values for one input: that file is damaged.
void require_amax(const MeasurementFile& file);

/// The values of a weight are a threshold below which most of |w| lies, not max |w|. So are those of an observer that
/// the table does not have.
bool has_thresholds(const MeasurementFile& file);

/// The values of key-value caches that are kept aside are one for each head.
bool has_heads(const MeasurementFile& file);

}  // namespace fp8::measure
