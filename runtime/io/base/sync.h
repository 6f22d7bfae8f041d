// SPDX-License-Identifier: Apache-2.0
// fsync of a folder: a rename or a new name is safe only after it. No torch here.
#pragma once
#include <filesystem>

namespace fp8::io {

/// Throws io::Error naming the folder.
void sync_folder(const std::filesystem::path& folder);

}  // namespace fp8::io
