// SPDX-License-Identifier: Apache-2.0
// See normal_form.h. utf8proc's tables; the order of marks is our own, as utf8proc's takes quadratic time.
#include "fp8/tools/text/unicode/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/unicode/utf8.h"

namespace fp8::text {
namespace {

using Codes = std::vector<utf8proc_int32_t>;

int class_of(utf8proc_int32_t code) {
  return code < 0x300 ? 0 : static_cast<int>(utf8proc_get_property(code)->combining_class);
}

// What decomposes since Unicode 12.1 alone: Hugging Face's tables are older.
bool is_later(std::uint32_t c) {
  return c == 0x32FF || (c >= 0xA7F2 && c <= 0xA7F4) || c == 0xAB69 || (c >= 0x10781 && c <= 0x107BA) || c == 0x11938 ||
         (c >= 0x1E030 && c <= 0x1E06D) || c == 0x1F16C || (c >= 0x1FBF0 && c <= 0x1FBF9);
}

void decompose(std::uint32_t code, bool compatibility, Codes& codes) {
  if (code < 0xA0 || is_later(code)) return codes.push_back(static_cast<utf8proc_int32_t>(code));
  constexpr utf8proc_ssize_t kMost = 32;  // the longest of Unicode's has 18
  utf8proc_int32_t buffer[kMost];
  const int options = UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), buffer, kMost,
                                             static_cast<utf8proc_option_t>(options), nullptr);
  if (count > 0 && count <= kMost) {
    codes.insert(codes.end(), buffer, buffer + count);
  } else {
    codes.push_back(static_cast<utf8proc_int32_t>(code));
  }
}

// Marks (class > 0) between two starters by class, equal ones in their order.
void order_marks(Codes& codes) {
  for (auto begin = codes.begin(); begin != codes.end();) {
    auto end = begin;
    while (end != codes.end() && class_of(*end) > 0) ++end;
    if (end - begin > 1)
      std::stable_sort(begin, end, [](auto left, auto right) { return class_of(left) < class_of(right); });
    begin = end == codes.end() ? end : end + 1;
  }
}

// U+11A7 stands just before Hangul's trailing letters and composes with nothing; utf8proc would swallow it.
void compose(Codes& codes) {
  constexpr utf8proc_int32_t kBeforeTrailing = 0x11A7;
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  auto to = codes.begin();
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find(begin, codes.end(), kBeforeTrailing);
    const auto size = utf8proc_normalize_utf32(&*begin, end - begin, options);
    to = std::copy(begin, begin + std::max<utf8proc_ssize_t>(size, 0), to);
    begin = end;
    if (begin != codes.end()) *to++ = *begin++;
  }
  codes.erase(to, codes.end());
}

}  // namespace

std::string normalized(std::string_view text, NormalForm form) {
  // First bytes below which nothing changes: of U+0300 (composition needs a partner from there), of U+00C0, of U+00A0.
  const bool compatibility = form == NormalForm::NFKC || form == NormalForm::NFKD;
  const unsigned char changed = compatibility ? 0xC2 : form == NormalForm::NFC ? 0xCC : 0xC3;
  const auto plain = [changed](char byte) { return static_cast<unsigned char>(byte) < changed; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  Codes codes;
  codes.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = decode_at(text, i);
    decompose(c.value, compatibility, codes);
    i += c.size;
  }
  order_marks(codes);
  if (form == NormalForm::NFC || form == NormalForm::NFKC) compose(codes);
  std::string result;
  result.reserve(text.size());
  for (const auto code : codes) io::utf8_append(result, static_cast<char32_t>(code));
  return result;
}

}  // namespace fp8::text
