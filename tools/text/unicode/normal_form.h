// SPDX-License-Identifier: Apache-2.0
// Unicode's normalization forms (UAX #15): decomposition, marks in canonical order, and for the forms with a C
// composition.
//
//   e U+0301 -> U+00E9 (C)        U+00E9 -> e U+0301 (D)        U+FB01 (fi ligature) -> f i (K)
//   U+212B (Angstrom sign) -> U+00C5 (C)        U+1100 U+1161 -> U+AC00 (C, Hangul)
#pragma once
#include <string>
#include <string_view>

namespace fp8::text {

enum class NormalForm { NFC, NFD, NFKC, NFKD };

/// text: well-formed UTF-8. Time is O(n log n) also where all of a text is marks.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace fp8::text
