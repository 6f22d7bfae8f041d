// SPDX-License-Identifier: Apache-2.0
// See parser.h.
//
//   {%- ... -%}   all white space on that side goes        {{- -}} and {#- -#} alike
//   {%  ...       spaces from the begin of its line go     (lstrip_blocks; not of {{)
//   {%+ ...       they stay
//   ... %}        a newline right behind it goes           (trim_blocks; not of }})
//   ... +%}       it stays
#include <charconv>

#include "fp8/tools/text/jinja/parser.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

constexpr std::size_t kMostSource = std::size_t{1} << 20, kLongestName = 256;  // bytes
constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                         "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name) {
    if (source.size() > kMostSource) fail("the template has more than " + std::to_string(kMostSource) + " bytes");
    if (!io::is_utf8(source)) fail("the template is not UTF-8");
    for (std::size_t i = 0; i < source.size(); ++i) {
      const bool carriage = source[i] == '\r';
      if (carriage && i + 1 < source.size() && source[i + 1] == '\n') continue;
      source_ += carriage ? '\n' : source[i];
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t begin = next_begin();
      data(begin);
      if (begin == std::string::npos) break;
      const char kind = source_[begin + 1];
      if (kind == '#')
        comment();
      else if (kind == '{')
        inside("}}", Token::Kind::print_begin, Token::Kind::print_end);
      else if (!raw())
        inside("%}", Token::Kind::block_begin, Token::Kind::block_end);
    }
    push(Token::Kind::end, "the end of the template");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { io::fail<io::Error>("{}:{}: {}", name_, line_, message); }
  bool here(std::string_view what) const { return std::string_view(source_).substr(at_, what.size()) == what; }
  char at(std::size_t place) const { return place < source_.size() ? source_[place] : '\0'; }
  void push(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::size_t next_begin() const {
    for (std::size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i)
      if (const char c = at(i + 1); c == '{' || c == '%' || c == '#') return i;
    return std::string::npos;
  }

  /// Text up to `end`, where a tag begins unless it is npos; at_ is then behind the tag's sign.
  void data(std::size_t end) {
    std::string_view text = std::string_view(source_).substr(at_, end == std::string::npos ? end : end - at_);
    std::size_t next = source_.size();
    if (end != std::string::npos) {
      const char sign = at(end + 2);
      next = end + (sign == '-' || sign == '+' ? 3 : 2);
      if (sign == '-') {
        text = stripped(text, false, true);
      } else if (sign != '+' && source_[end + 1] != '{') {
        const auto newline = text.rfind('\n');
        const auto begin = newline == std::string_view::npos ? 0 : newline + 1;
        if ((begin > 0 || line_starts_) && stripped(text.substr(begin), true, false).empty())
          text = text.substr(0, begin);
      }
    }
    if (!text.empty()) push(Token::Kind::data, std::string(text));
    advance(next);
  }

  std::size_t skip_spaces(std::size_t place) const {
    const auto rest = std::string_view(source_).substr(place);
    return place + rest.size() - stripped(rest, true, false).size();
  }

  /// Past a tag's end at `place`, which may be "-%}", "+%}" or "%}"; empty if there is none. close: "%}", "}}", "#}".
  std::optional<std::size_t> past_end(std::size_t place, std::string_view close) const {
    const auto rest = std::string_view(source_).substr(place);
    const bool prints = close == "}}";
    if (rest.starts_with('-') && rest.substr(1).starts_with(close)) return skip_spaces(place + 1 + close.size());
    if (!prints && rest.starts_with('+') && rest.substr(1).starts_with(close)) return place + 1 + close.size();
    if (!rest.starts_with(close)) return std::nullopt;
    place += close.size();
    return !prints && at(place) == '\n' ? place + 1 : place;
  }

  void leave(std::size_t end) {
    line_starts_ = source_[end - 1] == '\n';
    advance(end);
  }

  void comment() {
    for (std::size_t i = at_; i < source_.size(); ++i)
      if (const auto end = past_end(i, "#}")) return leave(*end);
    fail("a comment has no end, expected #}");
  }

  /// Past "{% word %}" at `place` behind "{%" and its sign; empty if another tag stands there.
  std::optional<std::size_t> past_word(std::size_t place, std::string_view word, bool begins) const {
    place = skip_spaces(place);
    if (std::string_view(source_).substr(place, word.size()) != word) return std::nullopt;
    place = skip_spaces(place + word.size());
    if (!begins) return past_end(place, "%}");
    if (at(place) == '-' && at(place + 1) == '%' && at(place + 2) == '}') return skip_spaces(place + 3);
    return at(place) == '%' && at(place + 1) == '}' ? std::optional(place + 2) : std::nullopt;
  }

  bool raw() {
    const auto begin = past_word(at_, "raw", true);
    if (!begin) return false;
    leave(*begin);
    for (std::size_t i = at_; (i = source_.find("{%", i)) != std::string::npos; ++i) {
      const char sign = at(i + 2);
      const auto end = past_word(i + (sign == '-' || sign == '+' ? 3 : 2), "endraw", false);
      if (!end) continue;
      data(i);
      leave(*end);
      return true;
    }
    fail("raw has no end, expected {% endraw %}");
  }

  void inside(std::string_view close, Token::Kind begin, Token::Kind end) {
    push(begin, close == "}}" ? "{{" : "{%");
    std::string open;
    while (true) {
      if (open.empty()) {
        if (const auto past = past_end(at_, close)) {
          push(end, std::string(close));
          return leave(*past);
        }
      }
      if (at_ >= source_.size()) fail("the template ends inside a tag, expected " + std::string(close));
      if (const auto past = skip_spaces(at_); past > at_)
        advance(past);
      else
        token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[at_];
    if (begins_name(c)) {
      std::size_t end = at_;
      while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
      if (end - at_ > kLongestName)
        fail("a name has " + std::to_string(end - at_) + " letters, allowed: " + std::to_string(kLongestName));
      push(Token::Kind::name, source_.substr(at_, end - at_));
      return advance(end);
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    for (const auto symbol : kSymbols) {
      if (!here(symbol)) continue;
      balance(open, symbol[0]);
      push(Token::Kind::symbol, std::string(symbol));
      return advance(at_ + symbol.size());
    }
    fail("found " + io::in_quotes(std::string_view(source_).substr(at_, sequence_size(static_cast<unsigned char>(c)))) +
         " inside a tag, which is not supported");
  }

  void balance(std::string& open, char c) {
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty() || open.back() != c) fail(std::string("unexpected '") + c + "'");
    open.pop_back();
  }

  void number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (is_digit(at(end))) ++end;
    };
    digits();
    const bool attribute = !tokens_.empty() && tokens_.back().is_symbol(".");  // a.0.1
    bool real = false;
    if (!attribute && at(end) == '.' && is_digit(at(end + 1))) real = true, ++end, digits();
    if (!attribute && (at(end) == 'e' || at(end) == 'E')) {
      const std::size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1;
      if (is_digit(at(end + sign))) real = true, end += sign, digits();
    }
    const std::string text = source_.substr(at_, end - at_);
    if (begins_name(at(end)) || (!real && text.size() > 1 && text[0] == '0'))
      fail("the number " + io::printable(source_.substr(at_, end + 1 - at_), 40) +
           " is not supported, allowed: 12, 1.5, 1e-3");
    push(real ? Token::Kind::real : Token::Kind::integer, text);
    const auto [last, error] = real ? std::from_chars(text.data(), text.data() + text.size(), tokens_.back().real)
                                    : std::from_chars(text.data(), text.data() + text.size(), tokens_.back().integer);
    if (error != std::errc()) fail("the number " + io::printable(text, 40) + " is too large");
    advance(end);
  }

  void string(char quote) {
    std::string value;
    std::size_t i = at_ + 1;
    for (; at(i) != quote; ++i) {
      if (i >= source_.size()) fail("a string has no end");
      if (source_[i] != '\\')
        value += source_[i];
      else
        escape(value, i);
    }
    push(Token::Kind::string, std::move(value));
    advance(i + 1);
  }

  /// source_[i] is '\\'; leaves i at the escape's last byte.
  void escape(std::string& value, std::size_t& i) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = at(++i);
    if (i >= source_.size()) fail("a string has no end");
    if (const auto known = kLetters.find(c); known != std::string_view::npos) {
      value += kMeant[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      std::uint32_t code = 0;
      const char *const begin = source_.data() + i + 1, *const end = begin + digits;
      if (i + digits >= source_.size() || std::from_chars(begin, end, code, 16).ptr != end || code > 0x10FFFF ||
          (code >= 0xD800 && code < 0xE000))
        fail("the escape '" + io::printable(source_.substr(i - 1, digits + 2), 40) + "' in a string is not supported");
      io::utf8_append(value, code);
      i += digits;
    } else if (is_digit(c) || c == 'N') {
      fail(std::string("the escape '\\") + c + "' in a string is not supported");
    } else if (c != '\n') {  // Python keeps the backslash before any other
      value += '\\';
      const auto size = sequence_size(static_cast<unsigned char>(c));
      if (size > 1) fail("a backslash before a letter beyond ASCII is not supported");
      value += c;
    }
  }

  const std::string name_;
  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& name) { return Lexer(source, name).run(); }

}  // namespace fp8::text::jinja
