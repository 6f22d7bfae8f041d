// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>

namespace fp8::io {

/// A file that can't be read, written or understood. The message names the file (and key, line or tensor), what was found
/// and what is allowed, in one line.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fp8::io
