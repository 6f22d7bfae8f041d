// SPDX-License-Identifier: Apache-2.0
// The text of an Error, "" for none; any other exception ends the case.
#pragma once
#include <string>

#include "fp8/runtime/io/base/error.h"

namespace fp8::io {

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace fp8::io
