// SPDX-License-Identifier: Apache-2.0
// Unicode normalization form C (UAX #15): canonical decomposition, marks in canonical order, composition.
//
//   e U+0301 -> U+00E9        U+212B (Angstrom sign) -> U+00C5        U+1100 U+1161 -> U+AC00 (Hangul, by formula)
//
// Tables of Unicode 14 in nfc_table.cpp, written by make_nfc_table.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::text {

/// text: well-formed UTF-8.
std::string to_nfc(std::string_view text);

namespace nfc {

struct Singleton {  ///< `code` is always written as `other`
  char32_t code, other;
};
struct Pair {  ///< `code` decomposes into first, second
  char32_t code, first, second;
};
struct ClassRange {  ///< code points first..last have this canonical combining class (others: 0)
  char32_t first, last;
  std::uint8_t combining_class;
};
template <typename T>
struct Table {
  const T* begin_;
  std::size_t size;
  const T* begin() const { return begin_; }
  const T* end() const { return begin_ + size; }
};
extern const Table<Singleton> kSingletons;  // by code
extern const Table<Pair> kComposed;         // by code; composition makes these again
extern const Table<Pair> kOnlyDecomposed;   // by code; composition never makes these
extern const Table<ClassRange> kClasses;    // by code point

}  // namespace nfc
}  // namespace fp8::text
