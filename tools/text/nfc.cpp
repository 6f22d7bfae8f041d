// SPDX-License-Identifier: Apache-2.0
// See nfc.h. Hangul: syllable = 0xAC00 + (l * 21 + v) * 28 + t, with l < 19 from U+1100, v < 21 from U+1161, t < 28
// from U+11A7 (t = 0: none).
#include "fp8/tools/text/nfc.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "fp8/runtime/io/base/utf8.h"
#include "fp8/tools/text/utf8.h"

namespace fp8::text {
namespace {

constexpr char32_t kSyllables = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr char32_t kLs = 19, kVs = 21, kTs = 28;

struct Letter {
  char32_t code;
  std::uint8_t combining_class;
};

std::uint8_t class_of(char32_t code) {
  if (code < 0x300) return 0;
  const auto next = std::upper_bound(nfc::kClasses.begin(), nfc::kClasses.end(), code,
                                     [](char32_t value, const nfc::ClassRange& range) { return value < range.first; });
  if (next == nfc::kClasses.begin()) return 0;
  const nfc::ClassRange& range = *(next - 1);
  return code <= range.last ? range.combining_class : 0;
}

template <typename T>
const T* find(const nfc::Table<T>& table, char32_t code) {
  const T* const found = std::lower_bound(table.begin(), table.end(), code,
                                          [](const T& entry, char32_t value) { return entry.code < value; });
  return found != table.end() && found->code == code ? found : nullptr;
}

void decompose(char32_t code, std::vector<Letter>& letters) {
  if (code < 0xC0) {
    letters.push_back({code, 0});
  } else if (code >= kSyllables && code < kSyllables + kLs * kVs * kTs) {
    const char32_t index = code - kSyllables, t = index % kTs;
    letters.push_back({kL + index / (kVs * kTs), 0});
    letters.push_back({kV + index / kTs % kVs, 0});
    if (t > 0) letters.push_back({kT + t, 0});
  } else if (const auto* const singleton = find(nfc::kSingletons, code)) {
    decompose(singleton->other, letters);
  } else {
    const auto* pair = find(nfc::kComposed, code);
    if (!pair) pair = find(nfc::kOnlyDecomposed, code);
    if (!pair) return letters.push_back({code, class_of(code)});
    decompose(pair->first, letters);
    letters.push_back({pair->second, class_of(pair->second)});  // second parts never decompose
  }
}

// Marks (class > 0) between two starters by class, equal ones in their order.
void order_marks(std::vector<Letter>& letters) {
  for (std::size_t i = 0; i < letters.size();) {
    std::size_t end = i;
    while (end < letters.size() && letters[end].combining_class > 0) ++end;
    std::stable_sort(letters.begin() + i, letters.begin() + end,
                     [](const Letter& a, const Letter& b) { return a.combining_class < b.combining_class; });
    i = end + 1;
  }
}

// The code point two others compose to, or 0.
char32_t composed(char32_t first, char32_t second) {
  if (first >= kL && first < kL + kLs && second >= kV && second < kV + kVs) {
    return kSyllables + ((first - kL) * kVs + (second - kV)) * kTs;
  }
  const bool open_syllable =
      first >= kSyllables && first < kSyllables + kLs * kVs * kTs && (first - kSyllables) % kTs == 0;
  if (open_syllable && second > kT && second < kT + kTs) return first + (second - kT);
  static const auto pairs = [] {
    std::unordered_map<std::uint64_t, char32_t> map;
    for (const nfc::Pair& pair : nfc::kComposed) map[std::uint64_t{pair.first} << 32 | pair.second] = pair.code;
    return map;
  }();
  const auto found = pairs.find(std::uint64_t{first} << 32 | second);
  return found == pairs.end() ? 0 : found->second;
}

// A letter joins the last starter unless one of the same or a higher class stands between them.
void compose(std::vector<Letter>& letters) {
  constexpr std::size_t kNoStarter = SIZE_MAX;
  std::size_t starter = kNoStarter, size = 0;
  for (const Letter letter : letters) {
    const bool adjacent = starter != kNoStarter && starter + 1 == size;
    const bool open = starter != kNoStarter && (adjacent || letters[size - 1].combining_class < letter.combining_class);
    if (const char32_t whole = open ? composed(letters[starter].code, letter.code) : 0) {
      letters[starter].code = whole;
      continue;
    }
    if (letter.combining_class == 0) starter = size;
    letters[size++] = letter;
  }
  letters.resize(size);
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Below U+0300 (whose first byte is CC) nothing composes or decomposes without a partner from above.
  const auto plain = [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::vector<Letter> letters;
  letters.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = decode_at(text, i);
    decompose(c.value, letters);
    i += c.size;
  }
  order_marks(letters);
  compose(letters);
  std::string result;
  result.reserve(text.size());
  for (const Letter& letter : letters) io::utf8_append(result, letter.code);
  return result;
}

}  // namespace fp8::text
