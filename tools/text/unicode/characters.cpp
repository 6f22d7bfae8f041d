// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/unicode/characters.h"

#include <utf8proc.h>

#include <array>

#include "fp8/runtime/io/base/text.h"

namespace fp8::text {
namespace {

// Marks, punctuation and control characters that Unicode has had since version 9; what lies between is of no such kind.
constexpr io::CodeRange kLater[] = {
    {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},     {0xA76, 0xA76},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},     {0xC77, 0xC77},     {0xC84, 0xC84},
    {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},
    {0x180F, 0x1886},   {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
    {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F89},
    {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B},
    {0x11438, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455},
    {0x16E97, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E95F}};

// Marks of all kinds that Unicode has had since version 10.
constexpr io::CodeRange kLaterMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},     {0xB55, 0xB55},
    {0xC04, 0xC3C},     {0xCF3, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x11A99}, {0x11D31, 0x13455}, {0x16F4F, 0x16F4F},
    {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1}, {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF}};

int category(std::uint32_t code_point) { return utf8proc_category(static_cast<utf8proc_int32_t>(code_point)); }

// Of a set of kinds, as Unicode 8 had them.
bool is_one_of(std::uint32_t c, int first, int last) {
  const int found = category(c);
  return found >= first && found <= last && !io::is_in(kLater, c);
}

// The lower case of letters that are later than utf8proc's tables, or 0.
std::uint32_t later_lower(std::uint32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0xA7CB: return 0x264;
    case 0xA7DC: return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA: return c + 1;
    default: return 0;
  }
}

}  // namespace

bool is_punctuation(std::uint32_t c) {
  if (c < 0x80)
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  return c == 0x166D || c == 0x111C9 || is_one_of(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_nonspacing_mark(std::uint32_t c) {
  return c >= 0x300 && (c == 0x1734 || (c != 0x111C9 && is_one_of(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN)));
}

bool is_mark(std::uint32_t c) {
  if (c < 0x300) return false;
  const int found = category(c);
  const bool now = found >= UTF8PROC_CATEGORY_MN && found <= UTF8PROC_CATEGORY_ME && !io::is_in(kLaterMarks, c);
  return now || c == 0x1CF2 || c == 0x1CF3;
}

bool is_control(std::uint32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  return is_one_of(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool is_ideograph(std::uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& text, std::uint32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    text.append("i\xCC\x87");
  } else {
    const std::uint32_t later = later_lower(c);
    const auto lower = later ? later : static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    io::utf8_append(text, static_cast<char32_t>(lower));
  }
}

std::size_t grapheme_size(std::string_view text, std::size_t begin) {
  CodePoint last = decode_at(text, begin);
  std::size_t end = begin + last.size;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const CodePoint next = decode_at(text, end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    end += next.size;
    last = next;
  }
  return end - begin;
}

// The accepted byte ranges are Unicode's table 3-7.

namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

struct Checked {
  std::size_t size;  // bytes of the code point, or of the maximal ill-formed subpart
  bool valid;
};

// Second bytes are narrower than 80..BF after E0 (no overlong), ED (no surrogates), F0 (no overlong), F4 (<= U+10FFFF).
Checked check_at(std::string_view text, std::size_t i) {
  const unsigned char lead = byte_at(text, i);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t size = sequence_size(lead);
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t k = 1; k < size; ++k) {
    if (i + k >= text.size()) return {k, false};
    const unsigned char next = byte_at(text, i + k);
    if (next < (k == 1 ? low : 0x80) || next > (k == 1 ? high : 0xBF)) return {k, false};
  }
  return {size, true};
}

}  // namespace

CodePoint decode_at(std::string_view text, std::size_t position) {
  const unsigned char lead = byte_at(text, position);
  const std::size_t size = sequence_size(lead);
  if (size == 1 || position + size > text.size()) return {lead, 1};
  std::uint32_t value = lead & (0xFFu >> (size + 1));
  for (std::size_t k = 1; k < size; ++k) value = value << 6 | (byte_at(text, position + k) & 0x3F);
  return {value, size};
}

CodePoint decode_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (byte_at(text, begin) & 0xC0) == 0x80) --begin;
  return decode_at(text, begin);
}

std::string sanitize(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Checked checked = check_at(text, i);
    result.append(checked.valid ? text.substr(i, checked.size) : std::string_view("\xEF\xBF\xBD"));
    i += checked.size;
  }
  return result;
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// utf8proc's tables; the order of marks is our own, as utf8proc's takes quadratic time.

namespace {

using Codes = std::vector<utf8proc_int32_t>;

int class_of(utf8proc_int32_t code) {
  return code < 0x300 ? 0 : static_cast<int>(utf8proc_get_property(code)->combining_class);
}

// True for what decomposes since Unicode 12.1 alone: Hugging Face's tables are older.
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
  if (count > 0 && count <= kMost)
    codes.insert(codes.end(), buffer, buffer + count);
  else
    codes.push_back(static_cast<utf8proc_int32_t>(code));
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

constexpr std::uint32_t kLetters = 0x144;  // code points 0..0x143 can stand for a byte

struct Alphabet {
  std::array<std::string, 256> letter;
  std::array<int, kLetters> byte;

  Alphabet() {
    byte.fill(-1);
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const std::uint32_t code_point = printable ? b : next++;
      io::utf8_append(letter[b], code_point);
      byte[code_point] = static_cast<int>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
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

void append_byte_letters(std::string& text, std::string_view bytes) {
  const Alphabet& table = alphabet();
  for (const char byte : bytes) text += table.letter[static_cast<unsigned char>(byte)];
}

int byte_of_letter(std::uint32_t code_point) { return code_point < kLetters ? alphabet().byte[code_point] : -1; }

}  // namespace fp8::text
