// SPDX-License-Identifier: Apache-2.0
// What two runs were asked to do, compared. No torch here.
#pragma once
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// The first difference in words: "option: 'format' was \"fp8\", is \"modelopt\"". Empty: none. The order of keys does
/// not matter.
std::string difference(const Json& was, const Json& is);

}  // namespace fp8::io
