// SPDX-License-Identifier: Apache-2.0
// Snapshots of a calibration (CalibrationSession::snapshot()) of which several processes each have a part.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::measure {

/// The snapshot of one process that looked at all modules, of those of several that ran the same samples through a
/// part of the model each: what is known of a module is what parts[owner(module)] knows. Throws io::Error for parts of
/// other modules or another number of samples.
io::Json join_snapshots(const std::vector<io::Json>& parts,
                        const std::function<std::size_t(const std::string&)>& owner);

}  // namespace fp8::measure
