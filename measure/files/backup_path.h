// SPDX-License-Identifier: Apache-2.0
// Where what lay in a folder of measurements goes. No torch here.
#pragma once
#include <filesystem>
#include <string>

namespace fp8::measure {

/// "backup_NAME_21-11_15:04:59" in `folder` (local time, as INC names it), or with _2, _3, ... where that exists; not
/// made.
std::filesystem::path backup_path(const std::filesystem::path& folder, const std::string& name);

}  // namespace fp8::measure
