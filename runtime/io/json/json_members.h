// SPDX-License-Identifier: Apache-2.0
// Strict JSON member by member, for headers and indexes of a million tensors. No torch here.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// What parse_json() parses, but the members of one object are handed over one by one in the order of the text and
/// never held together: of the object that stands under the top-level key `within`, or (within empty) of the text's own
/// object. What is returned lacks them. Whether that object has a key twice is the caller's to find out (parse_json
/// then tells where). An object that is nowhere, or something else in its place, is no error here. A member has at most
/// 2^20 values.
Json parse_json_members(std::string_view text, const std::string& name, std::string_view within,
                        const std::function<void(std::string&& key, Json&& value)>& member);

}  // namespace fp8::io
