// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648, section 4), as tables of tokens and of rules are written.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace fp8::text {

/// The bytes; empty where `text` is not base64 (whole groups of four, "=" at the end alone).
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace fp8::text
