// SPDX-License-Identifier: Apache-2.0
// YAML as text: libyaml's own emitter has no comments.
#include <charconv>

#include "fp8/runtime/io/yaml/yaml.h"

namespace fp8::io {
namespace {

/// Shortest digits that parse to the same double, as a float: 1 is "1.0".
std::string float_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// Ends a line, takes no room, or may not stand in a file of YAML.
bool is_escaped(std::uint32_t code) { return !is_drawn(code) || code == 0xFFFE || code == 0xFFFF; }

/// Without quotes it is read as the same text, whatever stands before and behind it in a block.
bool is_plain(const std::string& text) {
  const auto letter_or_digit = [](char c) { return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9'); };
  if (!yaml_scalar(text).is_string() || text == "<<" || text == "=" || text.starts_with("...")) return false;
  const char first = text.front();
  const bool begins = letter_or_digit(first) || static_cast<unsigned char>(first) >= 0x80 ||
                      std::string_view("._/<=+$()").find(first) != std::string_view::npos;
  if (!begins || text.back() == ' ' || text.back() == ':') return false;
  if (text.find(": ") != std::string::npos || text.find(" #") != std::string::npos) return false;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    length = utf8_length(text, at);
    if (length == 0 || is_escaped(utf8_decode(text, at, length))) return false;
  }
  return true;
}

/// In double quotes; bytes that are not UTF-8 become U+FFFD.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (std::size_t at = 0, length = 0; at < text.size(); at += std::max<std::size_t>(length, 1)) {
    length = utf8_length(text, at);
    const std::uint32_t code = length == 0 ? 0xFFFD : utf8_decode(text, at, length);
    if (code == '\n') {
      out += "\\n";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code == '\r') {
      out += "\\r";
    } else if (is_escaped(code)) {
      const int digits = code <= 0xFF ? 2 : code <= 0xFFFF ? 4 : 8;
      out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      append_hex(out, code, digits);
    } else {
      if (code == '"' || code == '\\') out += '\\';
      utf8_append(out, code);
    }
  }
  return out + '"';
}

std::string scalar_text(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return is_plain(text) ? text : quoted(text);
  }
  if (value.is_null()) return "~";
  return value.is_number_float() ? float_text(value.get<double>()) : value.dump();
}

class Writer {
 public:
  explicit Writer(const std::map<std::string, std::string>& comments) : comments_(comments) {}

  std::string text(const Json& value) && {
    write(value, "", 0);
    return std::move(out_);
  }

 private:
  void end_line(const std::string& pointer) {
    constexpr std::size_t kMostOfComment = 4096;
    const auto found = comments_.find(pointer);
    if (found != comments_.end()) out_ += "  # " + printable(found->second, kMostOfComment);
    out_ += '\n';
  }
  static bool is_block(const Json& value) { return value.is_structured() && !value.empty(); }

  /// From where the line stands; the next ones begin at the column `indent`.
  void write(const Json& value, const std::string& pointer, std::size_t indent) {
    if (!is_block(value)) {
      out_ += value.is_structured() ? value.dump() : scalar_text(value);
      return end_line(pointer);
    }
    std::size_t at = 0;
    for (const auto& [key, part] : value.items()) {
      if (at > 0) out_.append(indent, ' ');
      const std::string inner = json_pointer(pointer, value.is_object() ? key : std::to_string(at));
      ++at;
      if (value.is_object()) {
        write_member(key, part, inner, indent);
      } else {
        out_ += "- ";
        write(part, inner, indent + 2);
      }
    }
  }
  void write_member(const std::string& key, const Json& part, const std::string& pointer, std::size_t indent) {
    constexpr std::size_t kMostOfKey = 1000;  // longer ones are none without a question mark
    const std::string name = scalar_text(key);
    if (name.size() > kMostOfKey) {
      out_ += "? " + name + '\n';
      out_.append(indent, ' ');
    } else {
      out_ += name;
    }
    out_ += ':';
    if (!is_block(part)) {
      out_ += ' ';
      return write(part, pointer, indent);
    }
    end_line(pointer);
    out_.append(indent + 2, ' ');
    write(part, pointer, indent + 2);
  }

  std::string out_;
  const std::map<std::string, std::string>& comments_;
};

}  // namespace

std::string yaml_text(const Json& value, const std::map<std::string, std::string>& comments) {
  return Writer(comments).text(value);
}

}  // namespace fp8::io
