// SPDX-License-Identifier: Apache-2.0
// The rewriting of an expression, and PCRE2 around it.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {
namespace {

// White_Space; PCRE2's own `\s` has U+180E too.
constexpr const char* kSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
// Alphabetic (with its symbols: circled and squared letters), marks, digits, connectors; PCRE2's own `\w` has letters,
// numbers and _.
constexpr const char* kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
// Outside [...] Oniguruma's `\w` also has Latin-1's superscripts and fractions.
constexpr const char* kWordAlone = R"(\xb2\xb3\xb9\xbc-\xbe)";

class Translator {
 public:
  Translator(const std::string& expression, const JsonPart& part) : in_(expression), part_(part) {}

  std::string run() {
    while (i_ < in_.size()) {
      if (in_[i_] == '\\')
        escape();
      else if (in_set_)
        inside_set();
      else
        outside_set();
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    part_.fail("has " + what + " at byte " + std::to_string(i_) + ", which is not supported");
  }
  void copy(std::size_t count) {
    out_.append(in_, i_, count);
    i_ += count;
  }
  bool next_is(std::string_view what) const { return std::string_view(in_).substr(i_, what.size()) == what; }

  void escape() {
    const char c = i_ + 1 < in_.size() ? in_[i_ + 1] : '\0';
    interval_end_ = false;
    if (c == 's' || c == 'w' || ((c == 'S' || c == 'W') && !in_set_)) {
      std::string members = c == 's' || c == 'S' ? kSpace : kWord;
      if (!in_set_ && (c == 'w' || c == 'W')) members += kWordAlone;
      out_ += in_set_ ? members : (c == 's' || c == 'w' ? "[" : "[^") + members + "]";
      i_ += 2;
    } else if (c == 'S' || c == 'W') {
      refuse(std::string("\\") + c + " inside [...]");
    } else if (std::string_view("hHXRKGykgQECZ").find(c) != std::string_view::npos && c != '\0') {
      refuse(std::string("\\") + c);  // another meaning in each engine
    } else {
      const bool braces = (c == 'p' || c == 'P' || c == 'x') && i_ + 2 < in_.size() && in_[i_ + 2] == '{';
      const std::size_t end = braces ? in_.find('}', i_) : std::string::npos;
      copy(c == '\0' ? 1 : end == std::string::npos ? 2 : end + 1 - i_);
    }
  }

  void inside_set() {
    if (next_is("&&")) refuse("&& inside [...]");
    if (in_[i_] == '[') return inner_set();
    if (in_[i_] == ']' && inner_) {
      if (i_ + 1 < in_.size() && in_[i_ + 1] == '-') refuse("a range after a nested [...]");
      inner_ = false;
      ++i_;
      return;
    }
    if (in_[i_] == ']' && i_ > set_start_) in_set_ = false;
    copy(1);
  }

  // [ab[cd]] is [abcd]: the members of a set in a set are its own.
  void inner_set() {
    const char next = i_ + 1 < in_.size() ? in_[i_ + 1] : '\0';
    if (inner_ || next == '^' || next == ':' || next == ']' || in_[i_ - 1] == '-') refuse("this nested [...]");
    inner_ = true;
    ++i_;
  }

  void outside_set() {
    const char c = in_[i_];
    if (c == '+' && interval_end_) refuse("{n,m}+");  // possessive for PCRE2, a repetition for Ruby
    interval_end_ = c == '}';
    if (c == '[') {
      in_set_ = true;
      copy(i_ + 1 < in_.size() && in_[i_ + 1] == '^' ? 2 : 1);
      set_start_ = i_;
    } else if (next_is("(?")) {
      group();
    } else if (next_is("(*")) {
      refuse("(*");
    } else {
      copy(1);
    }
  }

  // (?: (?= (?! (?> (?<= (?<! and (?i: (?-i: (?i) mean the same in both.
  void group() {
    for (const std::string_view same : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (next_is(same)) return copy(same.size());
    for (const std::string_view same : {"(?i:", "(?-i:", "(?i)", "(?-i)"})
      if (next_is(same)) return copy(same.size());
    refuse("the group " + io::in_quotes(in_.substr(i_, 4)));
  }

  const std::string& in_;
  const JsonPart& part_;
  std::string out_;
  std::size_t i_ = 0, set_start_ = 0;
  bool in_set_ = false, inner_ = false, interval_end_ = false;  // inner_: in a set in a set
};

// One per thread: matching writes into it.
pcre2_match_data* match_data() {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  thread_local const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  if (!data) throw std::bad_alloc();
  return data.get();
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[200];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Pattern::Regex {
  pcre2_code* code = nullptr;
  std::string name;  // for errors while matching
  ~Regex() { pcre2_code_free(code); }
};

Pattern::Pattern() = default;
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& expression, const JsonPart& part) {
  constexpr std::size_t kLongest = 65536;
  if (expression.size() > kLongest)
    part.fail("is an expression of " + std::to_string(expression.size()) + " bytes, allowed 65536");
  const std::string translated = Translator(expression, part).run();
  Pattern pattern;
  pattern.regex_ = std::make_unique<Regex>();
  pattern.regex_->name = io::in_quotes(expression);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  // NEVER_BACKSLASH_C: `\C` would split a code point.
  pattern.regex_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get());
  if (!pattern.regex_->code) part.fail("is not a regular expression that is supported: " + error_text(code));
  pcre2_jit_compile(pattern.regex_->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs
  return pattern;
}

Pattern Pattern::from_json(const JsonPart& part) {
  const auto text = part.find("String");
  const auto expression = part.find("Regex");
  if (!text == !expression) part.fail("needs exactly one of String and Regex");
  if (text && text->string().empty()) text->fail("is empty");
  return text ? literal(text->string()) : regex(expression->string(), *expression);
}

// The first match at or after byte `from`.
bool Pattern::find(std::string_view text, std::size_t from, Stretch& match) const {
  if (!regex_) {
    if (literal_.empty()) return false;
    const std::size_t at = find_text(text, literal_, from);
    if (at == std::string_view::npos) return false;
    match = {at, at + literal_.size(), true};
    return true;
  }
  pcre2_match_data* const data = match_data();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // The text is known to be well-formed; checking it again at each match would be quadratic.
  int result = pcre2_match(regex_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, nullptr);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(regex_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    io::fail<io::Error>("the pattern {} can't be matched with this text: {}", regex_->name, error_text(result));
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data);
  if (bounds[0] < from || bounds[1] < bounds[0]) io::fail<io::Error>("the pattern {} matches backwards", regex_->name);
  match = {bounds[0], bounds[1], true};
  return true;
}

bool Pattern::found_in(std::string_view text) const {
  Stretch match;
  return find(text, 0, match);
}

template <class F>
void Pattern::for_each_stretch(std::string_view text, F&& f) const {
  std::size_t from = 0, done = 0;
  bool any = false;
  Stretch match;
  while (from <= text.size() && find(text, from, match)) {
    const bool empty = match.begin == match.end;
    from = match.end;
    if (empty) {  // an empty match moves on by one code point, and counts only where no match has just ended
      from += match.end < text.size() ? decode_at(text, match.end).size : 1;
      if (any && match.end == done) continue;
    }
    if (match.begin > done) f(Stretch{done, match.begin, false});
    f(match);
    done = match.end;
    any = true;
  }
  if (done < text.size()) f(Stretch{done, text.size(), false});
}

std::string Pattern::replace(std::string_view text, std::string_view content, std::size_t limit) const {
  std::string result;
  result.reserve(std::min(text.size(), limit));
  for_each_stretch(text, [&](const Stretch& stretch) {
    const std::string_view piece = stretch.match ? content : text.substr(stretch.begin, stretch.end - stretch.begin);
    if (piece.size() > limit - result.size())
      check_bytes(limit + 1, limit, "replacing by " + io::in_quotes(std::string(content)));
    result.append(piece);
  });
  return result;
}

std::vector<Stretch> Pattern::split(std::string_view text) const {
  std::vector<Stretch> stretches;
  for_each_stretch(text, [&](const Stretch& stretch) { stretches.push_back(stretch); });
  return stretches;
}

}  // namespace fp8::text
