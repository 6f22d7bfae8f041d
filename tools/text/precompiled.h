// SPDX-License-Identifier: Apache-2.0
// SentencePiece's compiled rules of normalization (precompiled_charsmap), as T5, XLM-R and ALBERT have them.
//
//   bytes 0..3      size of the trie in bytes, little-endian
//   trie            a double array (Darts-clone) of 32-bit units; its values are offsets into
//   strings         what is written instead, each ended by a zero byte
//
//   a unit   bit 8: a value follows   bits 0-7 and 31: label   bits 10-30, shifted left by 8 with bit 9: offset
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/tools/text/json_part.h"

namespace fp8::text {

class Precompiled {
 public:
  /// part: precompiled_charsmap, base64. Throws io::Error naming it where it is no such table.
  explicit Precompiled(const JsonPart& part);

  static constexpr std::size_t kLongest = 256;  ///< bytes of a rule's two sides

  /// The longest start of `text` that has a rule, and what is written for it; size 0: none has.
  struct Rule {
    std::size_t size = 0;
    std::string_view text;
  };
  Rule longest(std::string_view text) const;

  /// Graphemes of less than six bytes as a whole, else character by character; what has no rule stays. Throws io::Error
  /// if that makes more than `limit` bytes. text: well-formed UTF-8.
  std::string apply(std::string_view text, std::size_t limit) const;

 private:
  /// What is written for `piece`: the rule of its shortest start that has one.
  std::optional<std::string_view> rule_of(std::string_view piece) const;
  std::string_view rule_at(std::size_t begin) const;
  /// Calls found(bytes, where its rule begins) for the starts of `text` that have one, from the shortest on, until that
  /// returns false.
  template <class Found>
  void walk(std::string_view text, const Found& found) const;

  std::vector<std::uint32_t> units_;
  std::string strings_;
};

}  // namespace fp8::text
