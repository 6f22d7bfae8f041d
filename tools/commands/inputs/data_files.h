// SPDX-License-Identifier: Apache-2.0
// The files that --data names. No torch here.
#pragma once
#include <string>
#include <vector>

#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

/// Names and patterns as files: * and ? and [ab] in a part of a path, ** for folders in folders; those of a pattern in
/// the order of their bytes. What is there by its very name is taken by that. Throws UsageError for a pattern that no
/// file fits.
text::DataFiles data_files(const std::string& option, const std::vector<std::string>& names);

}  // namespace fp8::commands
