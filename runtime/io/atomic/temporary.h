// SPDX-License-Identifier: Apache-2.0
// How the temporary files beside outputs are named and made (atomic_file.h). Not installed.
#pragma once
#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::io {

/// A name of its own for each call, which the next writer of `path` removes when this process is gone. path: absolute.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// Makes and locks the file under which `path` is written, and reserves its bytes; `path` becomes what its links lead
/// to. Throws io::Error, and then nothing is left.
Descriptor open_temporary(std::filesystem::path& path, std::uint64_t reserve, std::filesystem::path& temporary,
                          std::optional<ListedTemporary>& listed);

}  // namespace fp8::io
