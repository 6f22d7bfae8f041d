// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648, section 4): bytes as a text. No torch here.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace fp8::io {

/// The bytes; empty where `text` is not base64 (whole groups of four, "=" at the end alone).
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace fp8::io
