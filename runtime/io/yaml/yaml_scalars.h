// SPDX-License-Identifier: Apache-2.0
// What a plain scalar of YAML means. Not for users.
#pragma once
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

Json scalar_of(const std::string& text);

}  // namespace fp8::io
