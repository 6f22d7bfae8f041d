// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC by it (RFC 2104): who does not know the secret cannot make the code of a text, nor find
// the secret from codes unless he guesses it. No torch here.
#pragma once
#include <string>
#include <string_view>

namespace fp8::io {

/// 32 bytes.
std::string sha256(std::string_view text);
/// 64 hexadecimal digits.
std::string hmac_sha256(std::string_view secret, std::string_view text);

}  // namespace fp8::io
