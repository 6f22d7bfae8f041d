// SPDX-License-Identifier: Apache-2.0
// Which characters are of one script (Unicode's Scripts.txt, version 9), as the pre-tokenizer UnicodeScripts asks:
// Latin, Greek, Common and so on; Hiragana, Katakana and U+30FC count as Han. A space, what is not assigned and what is
// for private use are of none.
#pragma once
#include <cstdint>

#include "fp8/tools/text/pattern.h"

namespace fp8::text {

class Scripts {
 public:
  Scripts();

  bool has_one(std::uint32_t code_point) const { return same(code_point, code_point); }
  /// True if both are of the same script; false where one is of none. Thread-safe.
  bool same(std::uint32_t a, std::uint32_t b) const;

 private:
  Pattern same_;
};

}  // namespace fp8::text
