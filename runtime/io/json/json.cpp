// SPDX-License-Identifier: Apache-2.0
// A recursive descent over RFC 8259. nlohmann supplies the value type and the writer; its parser keeps the last of two
// equal keys, tells no line for its callbacks, and looks keys up one by one (quadratic for a header of 100 000
// tensors).
#include "fp8/runtime/io/json/json.h"

#include <charconv>
#include <system_error>
#include <unordered_set>

#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::io {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxValues = std::size_t{1} << 24;
constexpr std::size_t kMaxMemberValues = std::size_t{1} << 20;  // of a member handed over by itself
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kFewKeys = 16;  // up to here a scan finds duplicates faster than a hash set

bool is_digit(char c) { return c >= '0' && c <= '9'; }

using MemberVisitor = std::function<void(std::string&& key, Json&& value)>;

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& name, bool python = false)
      : text_(text), name_(name), python_(python) {}
  JsonParser(std::string_view text, const std::string& name, std::string_view within, const MemberVisitor& visitor)
      : text_(text), name_(name), within_(within), visitor_(&visitor) {}

  Json parse() {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") fail("a byte order mark is not allowed", 0);
    Json result = value(0, visitor_ != nullptr && within_.empty());
    skip_space();
    if (at_ < text_.size()) fail("text after the end of the value: " + here());
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::string_view row = before.substr(before.rfind('\n') + 1);  // npos + 1 == 0: the first line
    const auto column = std::count_if(row.begin(), row.end(), [](char c) { return (c & 0xc0) != 0x80; }) + 1;
    io::fail<Error>("{}:{}:{}: {}", printable(name_, 4096), line, column, what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail(what, at_); }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  std::string here() const {
    if (at_ >= text_.size()) return "end of text";
    return in_quotes(text_.substr(at_, std::max<std::size_t>(1, utf8_length(text_, at_))));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  // visited: an object's members go to the visitor.
  Json value(int depth, bool visited = false) {
    skip_space();
    if (++values_ > kMaxValues) fail("more than " + std::to_string(kMaxValues) + " values");
    if (values_ > most_) fail("more than " + std::to_string(kMaxMemberValues) + " values in one member");
    const char c = peek();
    if (c == '{' || c == '[') {
      if (depth == kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
      return c != '{' ? array(depth) : visited ? visited_object(depth) : object(depth);
    }
    if (c == '"') return Json(string());
    if (c == '-' || is_digit(c)) return number();
    return literal();
  }

  std::string key_with_colon() {
    if (peek() != '"') fail("expected a key in double quotes, found " + here());
    std::string key = string();
    skip_space();
    if (peek() != ':') fail("expected ':' after key " + in_quotes(key) + ", found " + here());
    ++at_;
    return key;
  }

  // True at the object's end.
  bool end_of_member() {
    skip_space();
    if (peek() == '}') return ++at_, true;
    if (peek() != ',') fail("expected ',' or '}', found " + here());
    ++at_;
    return false;
  }

  Json visited_object(int depth) {
    ++at_;
    skip_space();
    if (peek() == '}') return ++at_, Json::object();
    do {
      skip_space();
      std::string key = key_with_colon();
      most_ = values_ + kMaxMemberValues;
      Json member = value(depth + 1);
      (*visitor_)(std::move(key), std::move(member));
    } while (!end_of_member());
    most_ = kMaxValues;
    return Json::object();
  }

  Json object(int depth) {
    Json result = Json::object();
    // ordered_map is a vector of pairs underneath; its own insertion would search all keys each time.
    auto& pairs = result.get_ref<Json::object_t&>();
    std::unordered_set<std::string> many;
    ++at_;
    skip_space();
    if (peek() == '}') return ++at_, result;
    for (;;) {
      skip_space();
      const std::size_t start = at_;
      std::string key = key_with_colon();
      bool known = false;
      if (pairs.size() < kFewKeys) {
        known = std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == key; });
      } else {
        if (many.empty())
          for (const auto& pair : pairs) many.insert(pair.first);
        known = !many.insert(key).second;
      }
      if (known) fail("duplicate key " + in_quotes(key), start);
      Json member = value(depth + 1, visitor_ != nullptr && depth == 0 && !within_.empty() && key == within_);
      pairs.emplace_back(std::move(key), std::move(member));
      if (end_of_member()) return result;
    }
  }

  Json array(int depth) {
    Json result = Json::array();
    auto& items = result.get_ref<Json::array_t&>();
    ++at_;
    skip_space();
    if (peek() == ']') return ++at_, result;
    for (;;) {
      items.push_back(value(depth + 1));
      skip_space();
      if (peek() == ']') return ++at_, result;
      if (peek() != ',') fail("expected ',' or ']', found " + here());
      ++at_;
    }
  }

  std::string string() {
    const std::size_t start = at_++;
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("a string without its closing quote", start);
      const char c = text_[at_];
      if (c == '"') return ++at_, out;
      if (c == '\\') {
        escape(out);
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20)
        fail("control character " + here() + " in a string, expected an escape");
      std::size_t end = at_;  // a run of plain characters
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' && text_[end] >= 0x20 && text_[end] < 0x7f)
        ++end;
      if (end == at_) {
        const std::size_t length = utf8_length(text_, at_);
        if (length == 0) fail("invalid UTF-8 byte " + here() + " in a string");
        end = at_ + length;
      }
      out.append(text_, at_, end - at_);
      at_ = end;
    }
  }

  void escape(std::string& out) {
    const std::size_t start = at_++;
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char c = peek();
    if (c == 'u') {
      std::uint32_t code = hex4(start);
      if (code >= 0xdc00 && code <= 0xdfff) fail("a low surrogate without a high one before it", start);
      if (code >= 0xd800 && code <= 0xdbff) {
        if (text_.substr(at_, 2) != "\\u") fail("a high surrogate without a low one after it", start);
        ++at_;
        const std::uint32_t low = hex4(start);
        if (low < 0xdc00 || low > 0xdfff) fail("a high surrogate without a low one after it", start);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      }
      utf8_append(out, code);
      return;
    }
    const std::size_t known = at_ < text_.size() ? kLetters.find(c) : std::string_view::npos;
    if (known == std::string_view::npos)
      fail("unknown escape, expected one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX", start);
    out += kMeanings[known];
    ++at_;
  }

  // The four digits after "\u"; at_ stands on the 'u'.
  std::uint32_t hex4(std::size_t start) {
    ++at_;
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || stop != digits.data() + 4) fail("expected four hex digits after \\u", start);
    at_ += 4;
    return code;
  }

  void digits(const char* where) {
    if (!is_digit(peek())) fail(std::string("expected a digit ") + where + ", found " + here());
    while (is_digit(peek())) ++at_;
  }

  Json number() {
    const std::size_t start = at_;
    if (peek() == '-') ++at_;
    if (text_.substr(at_, 8) == "Infinity") return unbounded("-Infinity", -kInfinity, start);
    if (peek() == '0' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))
      fail("a number may not start with 0", start);
    digits("in a number");
    bool integer = true;
    if (peek() == '.') integer = false, ++at_, digits("after '.'");
    if (peek() == 'e' || peek() == 'E') {
      integer = false, ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits("in an exponent");
    }
    const char *first = text_.data() + start, *last = text_.data() + at_;
    if (integer && std::string_view(first, last) != "-0") {  // "-0" stays a double: an int has no such value
      std::int64_t negative = 0;
      std::uint64_t positive = 0;
      if (*first == '-' && std::from_chars(first, last, negative).ec == std::errc()) return Json(negative);
      if (*first != '-' && std::from_chars(first, last, positive).ec == std::errc()) return Json(positive);
    }
    double real = 0;
    if (std::from_chars(first, last, real).ec == std::errc()) return Json(real);
    if (too_large({first, last})) fail("number " + in_quotes({first, last}) + " is out of range", start);
    return Json(*first == '-' ? -0.0 : 0.0);
  }

  // Tells overflow from underflow, which from_chars does not: is the first nonzero digit, moved by the exponent, left
  // of the point?
  static bool too_large(std::string_view number) {
    const std::size_t mantissa_end = std::min(number.find_first_of("eE"), number.size());
    const std::string_view mantissa = number.substr(0, mantissa_end);
    const std::size_t nonzero = mantissa.find_first_of("123456789");
    const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
    double exponent = 0;  // exact far beyond any file's length, and never overflows an int
    for (const char c : number.substr(mantissa_end))
      if (is_digit(c)) exponent = std::min(exponent * 10 + (c - '0'), 1e15);
    if (number.find("e-") != std::string_view::npos || number.find("E-") != std::string_view::npos)
      exponent = -exponent;
    return static_cast<double>(point) - static_cast<double>(nonzero) + exponent > 0;
  }

  // A word that is no number in JSON; at_ may stand in the middle of it.
  Json unbounded(std::string_view word, double value, std::size_t start) {
    if (!python_) fail(std::string(word) + " is not allowed in JSON", start);
    at_ = start + word.size();
    return Json(value);
  }

  Json literal() {
    const auto take = [&](std::string_view word) {
      if (text_.substr(at_, word.size()) != word) return false;
      at_ += word.size();
      return true;
    };
    const std::size_t start = at_;
    if (take("true")) return Json(true);
    if (take("false")) return Json(false);
    if (take("null")) return Json(nullptr);
    if (take("NaN")) return unbounded("NaN", std::numeric_limits<double>::quiet_NaN(), start);
    if (take("Infinity")) return unbounded("Infinity", kInfinity, start);
    for (const char* word : {"nan", "inf"})
      if (take(word)) fail(std::string(word) + " is not allowed in JSON", start);
    fail("expected a value, found " + here());
  }

  std::string_view text_;
  const std::string& name_;
  std::string_view within_ = {};
  const MemberVisitor* visitor_ = nullptr;
  bool python_ = false;
  std::size_t at_ = 0, values_ = 0, most_ = kMaxValues;
};

void check_finite(const Json& value, const std::filesystem::path& path, const std::string& key) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    fail(path, "key " + in_quotes(key) + " is NaN or infinite, which JSON can't hold");
  if (value.is_object())
    for (const auto& [name, member] : value.items()) check_finite(member, path, name);
  if (value.is_array())
    for (const auto& member : value) check_finite(member, path, key);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name) { return JsonParser(text, name).parse(); }

Json parse_json_members(std::string_view text, const std::string& name, std::string_view within,
                        const MemberVisitor& member) {
  return JsonParser(text, name, within, member).parse();
}

Json read_json(const std::filesystem::path& path) { return parse_json(read_file(path, kMaxFileBytes), path.string()); }

Json parse_python_json(std::string_view text, const std::string& name) { return JsonParser(text, name, true).parse(); }

Json read_python_json(const std::filesystem::path& path) {
  return parse_python_json(read_file(path, kMaxFileBytes), path.string());
}

std::string python_text(const Json& value) {
  const auto joined = [&](const auto& text_of_member) {
    std::string text;
    for (const auto& member : value.items()) text += (text.empty() ? "" : ",") + text_of_member(member);
    return text;
  };
  if (value.is_object())
    return "{" + joined([](const auto& m) { return python_text(Json(m.key())) + ":" + python_text(m.value()); }) + "}";
  if (value.is_array()) return "[" + joined([](const auto& m) { return python_text(m.value()); }) + "]";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double x = value.get<double>();
    return std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
  }
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string json_text(const std::filesystem::path& path, const Json& value, int indent) {
  check_finite(value, path, "");
  std::string text;
  try {
    text = value.dump(indent);
  } catch (const Json::exception&) {
    fail(path, "a string or key to be written is not UTF-8");
  }
  text += '\n';
  return text;
}

void write_json(const std::filesystem::path& path, const Json& value, int indent) {
  const std::string text = json_text(path, value, indent);
  AtomicFile file(path, text.size());
  file.append(text);
  file.commit();
}

}  // namespace fp8::io
