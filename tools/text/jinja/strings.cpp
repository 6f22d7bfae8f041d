// SPDX-License-Identifier: Apache-2.0
// See value.h.
#include <utf8proc.h>

#include <bitset>

#include "fp8/tools/text/jinja/value.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

std::string escaped(std::uint32_t code_point) {
  char buffer[16];
  const char* const form = code_point < 0x100 ? "\\x%02x" : code_point < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, form, code_point);
  return buffer;
}

/// str.isprintable() of a character above ASCII.
bool is_printable(std::uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void require_ascii(Machine& m, std::string_view text) {
  m.spend_bytes(text.size());
  if (!io::is_ascii(text))
    m.fail("the case of a text is changed that has letters beyond ASCII, which is not supported");
}

bool is_letter(char c) { return io::lower(c) != io::upper(c); }

bool ends_line(std::uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

/// Found at once, however many they are.
class CharacterSet {
 public:
  CharacterSet(Machine& m, std::string_view members) {
    constexpr std::size_t kAll = 0x110000;
    m.spend_bytes(members.size());
    for (std::size_t at = 0; at < members.size();) {
      const auto c = decode_at(members, at);
      at += c.size;
      if (c.value >= ascii_.size() && others_.empty()) {
        m.spend_bytes(kAll / 8);
        others_.resize(kAll);
      }
      c.value < ascii_.size() ? void(ascii_.set(c.value)) : void(others_[c.value] = true);
    }
  }
  bool has(std::uint32_t c) const { return c < ascii_.size() ? ascii_[c] : !others_.empty() && others_[c]; }

 private:
  std::bitset<128> ascii_;
  std::vector<bool> others_;
};

template <class Goes>
std::string_view stripped_where(const Goes& goes, std::string_view text, bool begin, bool end) {
  while (begin && !text.empty()) {
    const auto c = decode_at(text, 0);
    if (!goes(c.value)) break;
    text.remove_prefix(c.size);
  }
  while (end && !text.empty()) {
    const auto c = decode_before(text, text.size());
    if (!goes(c.value)) break;
    text.remove_suffix(c.size);
  }
  return text;
}

void add_part(Machine& m, Parts& parts, std::string_view part) {
  m.spend();
  m.allow((parts.size() + 1) * sizeof part);
  parts.push_back(part);
}

std::string backwards(Machine& m, std::string_view text) {
  m.allow(text.size());
  m.spend_bytes(text.size());
  return {text.rbegin(), text.rend()};
}

}  // namespace

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t find_last(Machine& m, std::string_view text, std::string_view what) {
  const auto found = find_text(backwards(m, text), backwards(m, what));
  return found == std::string_view::npos ? found : text.size() - what.size() - found;
}

bool is_space(std::uint32_t c) { return (c >= 0x1C && c <= 0x1F) || is_white_space(c); }

std::string_view stripped(std::string_view text, bool begin, bool end) {
  return stripped_where(is_space, text, begin, end);
}

std::string_view stripped(Machine& m, std::string_view text, bool begin, bool end, const std::string* which) {
  std::string_view rest;
  if (which) {
    const CharacterSet set(m, *which);
    rest = stripped_where([&](std::uint32_t c) { return set.has(c); }, text, begin, end);
  } else {
    rest = stripped(text, begin, end);
  }
  m.spend_bytes(text.size() - rest.size());
  return rest;
}

std::string quoted(Machine& m, std::string_view text) {
  m.spend_bytes(text.size());
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const auto c = decode_at(text, at);
    if (c.value == '\\' || c.value == static_cast<unsigned char>(quote)) {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t";
    } else if (c.value < 0x20 || c.value == 0x7F || (c.value > 0x7F && !is_printable(c.value))) {
      out += escaped(c.value);
      m.allow(out.size());
    } else {
      out += text.substr(at, c.size);
    }
    at += c.size;
  }
  return out + quote;
}

std::string upper_case(Machine& m, std::string_view text) {
  require_ascii(m, text);
  return io::upper(std::string(text));
}

std::string lower_case(Machine& m, std::string_view text) {
  require_ascii(m, text);
  return io::lower(std::string(text));
}

std::string capitalized(Machine& m, std::string_view text) {
  std::string out = lower_case(m, text);
  if (!out.empty()) out[0] = io::upper(out[0]);
  return out;
}

std::string title_case(Machine& m, std::string_view text) {
  std::string out = lower_case(m, text);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (i == 0 || !is_letter(out[i - 1])) out[i] = io::upper(out[i]);
  return out;
}

std::string replaced(Machine& m, std::string_view text, std::string_view old, std::string_view with,
                     std::int64_t count) {
  m.spend_bytes(text.size());
  std::string out;
  std::size_t at = 0;
  if (old.empty()) {  // between all characters
    for (; count != 0; --count) {
      m.spend();
      m.allow(out.size() + with.size());
      out += with;
      if (at >= text.size()) return out;
      const auto size = decode_at(text, at).size;
      out += text.substr(at, size);
      at += size;
    }
    return out.append(text.substr(at));
  }
  for (; count != 0; --count) {
    const auto found = find_text(text, old, at);
    if (found == std::string_view::npos) break;
    m.spend();
    m.allow(out.size() + with.size() + found - at);
    out.append(text.substr(at, found - at)).append(with);
    at = found + old.size();
  }
  return out.append(text.substr(at));
}

Parts split_at_spaces(Machine& m, std::string_view text, std::int64_t most, bool from_right) {
  m.spend_bytes(text.size());
  Parts parts;
  for (text = stripped(text, !from_right, from_right); !text.empty(); text = stripped(text, !from_right, from_right)) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      add_part(m, parts, text);
      break;
    }
    std::size_t size = 0;  // of the word at that end
    while (size < text.size()) {
      const auto c = from_right ? decode_before(text, text.size() - size) : decode_at(text, size);
      if (is_space(c.value)) break;
      size += c.size;
    }
    add_part(m, parts, from_right ? text.substr(text.size() - size) : text.substr(0, size));
    if (from_right)
      text.remove_suffix(size);
    else
      text.remove_prefix(size);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

Parts split_at(Machine& m, std::string_view text, std::string_view separator, std::int64_t most, bool from_right) {
  m.spend_bytes(text.size());
  const std::string back = from_right ? backwards(m, text) : "", what = from_right ? backwards(m, separator) : "";
  // The part at [begin, end) of the text, or of it backwards.
  const auto part = [&](std::size_t begin, std::size_t end) {
    return text.substr(from_right ? text.size() - end : begin, end - begin);
  };
  Parts parts;
  std::size_t at = 0;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const auto found = from_right ? find_text(back, what, at) : find_text(text, separator, at);
    if (found == std::string_view::npos) break;
    add_part(m, parts, part(at, found));
    at = found + separator.size();
  }
  add_part(m, parts, part(at, text.size()));
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

Parts split_lines(Machine& m, std::string_view text, bool keep_ends) {
  m.spend_bytes(text.size());
  Parts lines;
  for (std::size_t begin = 0, at = 0; at < text.size();) {
    const auto c = decode_at(text, at);
    std::size_t end = at + c.size;
    if (!ends_line(c.value)) {
      at = end;
      if (at >= text.size()) add_part(m, lines, text.substr(begin));
      continue;
    }
    if (c.value == '\r' && end < text.size() && text[end] == '\n') ++end;
    add_part(m, lines, text.substr(begin, (keep_ends ? end : at) - begin));
    begin = at = end;
  }
  return lines;
}

}  // namespace fp8::text::jinja
