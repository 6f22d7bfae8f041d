// SPDX-License-Identifier: Apache-2.0
// Finding a text in a text in time that grows with the two alone; std::string's find() takes up to their product.
#pragma once
#include <cstddef>
#include <cstring>
#include <string_view>

namespace fp8::text {

/// Where `what` first stands in `text` from byte `from` on, or npos.
inline std::size_t find_text(std::string_view text, std::string_view what, std::size_t from = 0) {
  if (from > text.size()) return std::string_view::npos;
  // glibc's memmem() is linear, and so are musl's and the BSDs'.
  const void* const found = ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

}  // namespace fp8::text
