// SPDX-License-Identifier: Apache-2.0
// Assertions of the folders without LibTorch, which elsewhere are TORCH_INTERNAL_ASSERT: what holds whatever a user or
// a file does. Not for loops over elements.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>

namespace fp8::io {

/// Throws std::logic_error "FILE:LINE: expected WHAT" unless `holds`.
inline void ensure(bool holds, const char* what, const std::source_location& at = std::source_location::current()) {
  if (!holds)
    throw std::logic_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": expected " + what);
}

}  // namespace fp8::io
