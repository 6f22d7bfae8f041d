// SPDX-License-Identifier: Apache-2.0
// What two runs were asked to do, compared. No torch here.
#pragma once
#include <optional>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// A leaf that is not the same in both: where it is, "option: format", and what was and is there ("nothing" for null).
struct Difference {
  std::string path, was, is;
};
/// None: they are equal. The order of keys does not matter.
std::optional<Difference> first_difference(const Json& was, const Json& is);

/// The same in words: "option: 'format' was \"fp8\", is \"modelopt\"". Empty: none.
std::string difference(const Json& was, const Json& is);

}  // namespace fp8::io
