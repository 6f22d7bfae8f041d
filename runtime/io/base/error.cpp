// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/error.h"

#include "fp8/runtime/io/base/utf8.h"

namespace fp8::io {

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (at >= limit) return out + "...";
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_length(text, at);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      at += 1;
    } else {
      const std::uint32_t code = utf8_decode(text, at, length);
      is_drawn(code) ? void(out += text.substr(at, length)) : append_escaped(out, code);
      at += length;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

void fail_at(std::string_view where, std::string_view what) {
  throw Error(std::string(where) + ": " + std::string(what));
}

}  // namespace fp8::io
