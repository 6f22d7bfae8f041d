// SPDX-License-Identifier: Apache-2.0
// See precompiled.h. No offset of the file is trusted: a walk that leaves the array finds nothing.
#include "fp8/tools/text/precompiled.h"

#include <algorithm>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/base64.h"
#include "fp8/tools/text/growth.h"
#include "fp8/tools/text/unicode/characters.h"
#include "fp8/tools/text/unicode/utf8.h"

namespace fp8::text {
namespace {

std::uint32_t little_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Precompiled::Precompiled(const JsonPart& part) {
  const auto bytes = from_base64(part.string());
  if (!bytes) part.fail("is not base64");
  const std::size_t size = bytes->size() < 4 ? 0 : little_endian(*bytes, 0);
  if (bytes->size() < 4 || size % 4 != 0 || size == 0 || size > bytes->size() - 4)
    part.fail("is no table of rules: " + std::to_string(bytes->size()) + " bytes, with a trie of " +
              std::to_string(size) + ", expected a multiple of 4 that fits");
  for (std::size_t i = 4; i < size + 4; i += 4) units_.push_back(little_endian(*bytes, i));
  strings_ = bytes->substr(4 + size);
  for (std::size_t end = 0, begin = 0; end < strings_.size(); begin = end + 1) {
    end = std::min(strings_.find('\0', begin), strings_.size());
    if (end - begin > kLongest)
      part.fail("has a rule of " + std::to_string(end - begin) + " bytes, allowed " + std::to_string(kLongest));
    if (!io::is_utf8(std::string_view(strings_).substr(begin, end - begin))) part.fail("has a rule that is not UTF-8");
  }
}

template <class Found>
void Precompiled::walk(std::string_view text, const Found& found) const {
  std::uint32_t node = offset_of(units_[0]);
  const std::size_t end = std::min(text.size(), kLongest);  // a table that leads in a circle has no end of its own
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size()) break;
    const std::uint32_t unit = units_[node];
    if ((unit & 0x800000FFu) != byte) break;
    node ^= offset_of(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const std::size_t begin = node < units_.size() ? units_[node] & 0x7FFFFFFFu : strings_.size();
    // An offset into the middle of a character is no rule either.
    if (begin >= strings_.size() || (static_cast<unsigned char>(strings_[begin]) & 0xC0) == 0x80) break;
    if (!found(i + 1, begin)) break;
  }
}

std::string_view Precompiled::rule_at(std::size_t begin) const {
  return std::string_view(strings_).substr(begin, std::min(strings_.find('\0', begin), strings_.size()) - begin);
}

std::optional<std::string_view> Precompiled::rule_of(std::string_view piece) const {
  std::optional<std::string_view> result;
  walk(piece, [&](std::size_t, std::size_t rule) {
    result = rule_at(rule);
    return false;
  });
  return result;
}

Precompiled::Rule Precompiled::longest(std::string_view text) const {
  std::size_t longest = 0, place = 0;
  walk(text, [&](std::size_t size, std::size_t rule) {
    // Neither a rule that ends within a character.
    if (size == text.size() || (static_cast<unsigned char>(text[size]) & 0xC0) != 0x80) longest = size, place = rule;
    return true;
  });
  return longest > 0 ? Rule{longest, rule_at(place)} : Rule();
}

std::string Precompiled::apply(std::string_view text, std::size_t limit) const {
  constexpr std::size_t kLongest = 5;  // bytes of a grapheme that has a rule of its own
  std::string result;
  result.reserve(text.size());
  const auto write = [&](std::string_view piece) {
    if (piece.size() > limit - result.size()) check_bytes(limit + 1, limit, "the precompiled_charsmap");
    result.append(piece);
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = grapheme_size(text, i);
    const std::string_view grapheme = text.substr(i, size);
    i += size;
    if (size <= kLongest) {
      if (const auto rule = rule_of(grapheme)) {
        write(*rule);
        continue;
      }
    }
    for (std::size_t k = 0; k < size;) {
      const std::size_t character = decode_at(grapheme, k).size;
      const std::string_view piece = grapheme.substr(k, character);
      write(rule_of(piece).value_or(piece));
      k += character;
    }
  }
  return result;
}

}  // namespace fp8::text
