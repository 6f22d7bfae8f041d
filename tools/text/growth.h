// SPDX-License-Identifier: Apache-2.0
// How far a tokenizer.json may take a text. Its steps replace, prepend and spell out bytes; a chain of them multiplies
// what each does, so limits hold for the whole chain: the bytes that any step of it makes, and the number of steps.
#pragma once
#include <cstddef>
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/text/json_part.h"

namespace fp8::text {

/// The most bytes that steps may make of a text of `size` bytes: 16 times its size, and a little more for what they put
/// before it. A text comes in pieces, cut at its added tokens, so that what is allowed for each adds up.
inline std::size_t most_bytes_of(std::size_t size) {
  return size > (~std::size_t{0} >> 5) ? ~std::size_t{0} : 16 * size + 256;
}

/// Throws io::Error where `size` is over the limit. step: who makes it, "replacing by 'x'".
inline void check_bytes(std::size_t size, std::size_t limit, const std::string& step) {
  if (size > limit) throw io::Error(step + " makes too long a text: over " + std::to_string(limit) + " bytes");
}

/// Throws io::Error naming `part` where it is a chain of more than 64 steps, those of Sequences inside of Sequences
/// counted. list: the key of a Sequence's steps.
inline void check_steps(const JsonPart& part, const char* list) {
  constexpr std::size_t kMost = 64;
  const auto count = [list](const auto& self, const JsonPart& step) -> std::size_t {
    if (step.type() != "Sequence") return 1;
    std::size_t steps = 0;
    for (const JsonPart& inner : step.at(list).elements()) steps += self(self, inner);
    return steps;
  };
  const std::size_t steps = count(count, part);
  if (steps > kMost) part.fail("has " + std::to_string(steps) + " steps, allowed " + std::to_string(kMost));
}

}  // namespace fp8::text
