// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/message.h"

#include <algorithm>

namespace fp8::commands {
namespace {

/// Bytes of a "[name] " that `text` begins with; 0 where it begins otherwise. A name with "::" is an operator's or a
/// class', which the message is about.
std::size_t origin_at(std::string_view text) {
  constexpr std::size_t kLongest = 48;
  if (!text.starts_with('[')) return 0;
  const auto end = text.find("] ");
  if (end == std::string_view::npos || end < 2 || end > kLongest) return 0;
  const auto is_of_a_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ' ';
  };
  return std::ranges::all_of(text.substr(1, end - 1), is_of_a_name) ? end + 2 : 0;
}

}  // namespace

std::string without_origin(std::string_view message) {
  std::string out;
  message.remove_prefix(origin_at(message));
  for (;;) {
    const auto colon = message.find(": [");
    if (colon == std::string_view::npos) return out.append(message);
    out.append(message.substr(0, colon + 2));
    message.remove_prefix(colon + 2);
    message.remove_prefix(origin_at(message));
  }
}

}  // namespace fp8::commands
