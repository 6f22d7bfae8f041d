// SPDX-License-Identifier: Apache-2.0
// The shared library that an address lies in.
#pragma once
#include <string>

namespace fp8::runtime {

/// Its file; "the program" where it is none.
std::string library_of(const void* address);

/// It stays in memory for the life of the process, whoever closes it.
void keep_library(const void* address);

}  // namespace fp8::runtime
