// SPDX-License-Identifier: Apache-2.0
// The text of an io::Error; any other exception ends the case.
#pragma once
#include <string>

#include "fp8/runtime/io/base/error.h"

namespace fp8::configs {

std::string thrown_by(auto&& call) {
  try {
    call();
  } catch (const io::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fp8::configs
