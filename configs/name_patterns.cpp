// SPDX-License-Identifier: Apache-2.0
// Translation of Python's syntax and the calls into PCRE2.
#include "fp8/configs/name_patterns.h"

#include <fnmatch.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <charconv>
#include <map>

namespace fp8::configs {
namespace {

// No start optimizations: those of 10.42 miss "(?=a)(?:ab)*a" in "ab".
constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_START_OPTIMIZE;
constexpr std::size_t kMaxPatternBytes = 64 * 1024;
constexpr std::uint32_t kMaxMatchSteps = 1000000;
constexpr std::uint32_t kMaxMatchKiB = 32 * 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  // Fills out_ with PCRE2's spelling, and origin_ with the offset in Python's that each byte came from.
  void run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(' && in_.substr(at_, 2) == "(*") {
        fail("nothing to repeat", at_ + 1);
      } else if (c == '(' && in_.substr(at_, 2) == "(?") {
        group();
      } else if (c == '{' && open_ended_minimum()) {
        emit("{0", 1);
      } else {
        emit(in_.substr(at_, 1), 1);
      }
    }
  }

  [[noreturn]] void fail(const std::string& what, std::size_t offset) const {
    io::fail<io::Error>("{}: pattern {}: {}, at offset {}", where_, io::in_quotes(in_), what, offset);
  }

  const std::string& out() const { return out_; }
  std::size_t origin(std::size_t offset) const { return offset < origin_.size() ? origin_[offset] : in_.size(); }

 private:
  void emit(std::string_view text, std::size_t consumed) {
    out_ += text;
    origin_.resize(out_.size(), at_);
    at_ += consumed;
  }

  // "(?": what only PCRE2 knows ((?R), (?&name), (?1), (?|...), (?<name>...), ...) is refused.
  void group() {
    const std::string_view after = in_.substr(at_ + 2, 2);
    const std::string_view first = after.substr(0, 1);
    const bool known = after == "P<" || after == "P=" || after == "<=" || after == "<!" ||
                       (!first.empty() && std::string_view(":#=!(>").find(first[0]) != std::string_view::npos);
    if (!known) flags(first);
    emit("(?", 2);
  }

  // "(?i:...)" anywhere; "(?i)" at the start only, for Python gives it to the whole pattern and PCRE2 to the rest.
  void flags(std::string_view first) {
    const std::size_t end = std::min(in_.find_first_not_of("aiLmsux-", at_ + 2), in_.size());
    const char after = end < in_.size() ? in_[end] : '\0';
    if (end == at_ + 2 || (after != ')' && after != ':')) fail("unknown extension (?" + io::printable(first), at_ + 1);
    if (after == ':') return;
    if (at_ != end_of_flags_) fail("global flags not at the start of the expression", at_);
    if (in_.substr(at_, end - at_).find('-') != std::string_view::npos) fail("missing :", end);
    end_of_flags_ = end + 1;
  }

  void open_class() {
    in_class_ = true;
    emit("[", 1);
    if (at_ < in_.size() && in_[at_] == '^') emit("^", 1);
    if (at_ < in_.size() && in_[at_] == ']') emit("\\]", 1);  // the first ']' is a member
    // PCRE2 looks for [:...:], [....] and [=...=] here too.
    const bool posix = at_ < in_.size() && std::string_view(":.=").find(in_[at_]) != std::string_view::npos;
    if (posix) emit("\\" + std::string(1, in_[at_]), 1);
  }

  void class_character(char c) {
    if (c == ']') in_class_ = false;
    emit(c == '[' ? std::string_view("\\[") : in_.substr(at_, 1), 1);  // PCRE2 would read [:alpha:]
  }

  // "{,3}" and "{,}": PCRE2 10.42 takes them literally.
  bool open_ended_minimum() const {
    if (in_.substr(at_, 2) != "{,") return false;
    std::size_t end = at_ + 2;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    return end < in_.size() && in_[end] == '}';
  }

  void escape() {
    if (at_ + 1 == in_.size()) fail("bad escape (end of pattern)", at_);
    const char c = in_[at_ + 1];
    if (c == 'x') return code_point(2);
    if (c == 'u') return code_point(4);
    if (c == 'U') return code_point(8);
    if (c == 'v') return emit("\\x0b", 2);
    if (c == 'Z' && !in_class_) return emit("\\z", 2);
    constexpr std::string_view kAnywhere = "adDsSwWfnrtb", kOutsideClass = "AB";
    const bool known =
        kAnywhere.find(c) != std::string_view::npos || (!in_class_ && kOutsideClass.find(c) != std::string_view::npos);
    if (is_letter(c) && !known) fail(std::string("bad escape \\") + c, at_);
    // One escaped character of several bytes stays whole: the backslash goes with its first byte, the rest is copied.
    emit(in_.substr(at_, 2), 2);
  }

  void code_point(std::size_t digits) {
    const std::string_view text = in_.substr(at_ + 2, digits);
    bool complete = text.size() == digits;
    for (char c : text) complete = complete && is_hex(c);
    if (!complete) fail(std::string("incomplete escape \\") + in_[at_ + 1], at_);
    emit("\\x{" + std::string(text) + "}", 2 + digits);
  }

  std::string_view in_, where_;
  std::string out_;
  std::vector<std::size_t> origin_;
  std::size_t at_ = 0;
  std::size_t end_of_flags_ = 0;  // where the (?i)(?s)... at the start end
  bool in_class_ = false;
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct CompileContext {
  CompileContext() : context(pcre2_compile_context_create(nullptr)) {
    if (context) pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // "." and "$" as in Python, however PCRE2 was built
  }
  ~CompileContext() { pcre2_compile_context_free(context); }
  pcre2_compile_context* context;
};

/// The alternatives of a list of numbers and ranges, "0|3|4|5"; empty if it is none.
std::string alternatives_of(std::string_view list) {
  constexpr std::size_t kMost = 10'000;
  std::string out;
  std::size_t count = 0;
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    const std::size_t hyphen = entry.find('-');
    std::size_t first = 0, last = 0;
    const auto read = [](std::string_view text, std::size_t& value) {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      return error == std::errc() && end == text.data() + text.size();
    };
    if (!read(entry.substr(0, hyphen), first)) return "";
    if (hyphen == std::string_view::npos)
      last = first;
    else if (!read(entry.substr(hyphen + 1), last))
      return "";
    for (; first <= last; ++first) {
      if (++count > kMost) return "";
      out += (out.empty() ? "" : "|") + std::to_string(first);
    }
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
  }
  return count > 1 ? out : "";
}

/// `pattern` with each ".{0,3-5}" that is a part of a name as the alternatives that it stands for.
std::string without_lists(std::string_view pattern) {
  std::string text;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const std::size_t end = pattern.substr(at).starts_with(".{") ? pattern.find('}', at) : std::string_view::npos;
    const bool part = end != std::string_view::npos && (end + 1 == pattern.size() || pattern[end + 1] == '.') &&
                      (at == 0 || pattern[at - 1] != '\\');
    const std::string numbers = part ? alternatives_of(pattern.substr(at + 2, end - at - 2)) : "";
    text += numbers.empty() ? std::string(1, pattern[at]) : "\\.(?:" + numbers + ")(?![0-9])";
    if (!numbers.empty()) at = end;
  }
  return text;
}

/// The name of which some parts, as many as the pattern has, are nearest to it: "model.lm_head" to "lm_hed",
/// "layers.3.up_proj" to "layers\.9\.".
std::string nearest_name(std::string_view pattern, const std::vector<std::string>& names) {
  if (pattern.starts_with("re:")) pattern.remove_prefix(3);
  std::string text;
  for (const char c : pattern)
    if (std::string_view("\\^$()*?").find(c) == std::string_view::npos) text += c;
  while (text.ends_with('.')) text.pop_back();
  text.erase(0, std::min(text.find_first_not_of('.'), text.size()));
  const auto more = std::count(text.begin(), text.end(), '.');
  std::map<std::string, std::string> runs;  // of parts, and a name that has them
  for (const auto& name : names) {
    for (std::size_t first = 0; first <= name.size(); first = std::min(name.find('.', first), name.size()) + 1) {
      std::size_t end = std::min(name.find('.', first), name.size());
      for (auto left = more; left > 0 && end < name.size(); --left)
        end = std::min(name.find('.', end + 1), name.size());
      runs.try_emplace(name.substr(first, end - first), name);
      if (end == name.size()) break;
    }
  }
  std::vector<std::string> words;
  for (const auto& [run, name] : runs) words.push_back(run);
  return runs.empty() ? "" : runs.at(io::closest(text, words));
}

}  // namespace

PythonRegex::PythonRegex(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {
  Translator translator(pattern_, where_);
  if (pattern.size() > kMaxPatternBytes) translator.fail("longer than 65536 bytes", kMaxPatternBytes);
  translator.run();
  const CompileContext compile;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translator.out().data()), translator.out().size(),
                                   kOptions, &error, &offset, compile.context);
  if (!code) translator.fail(message_of(error), translator.origin(offset));
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

bool PythonRegex::search(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto fail = [&](const std::string& what) {
    io::fail<io::Error>("{}: pattern {} on {}: {}", where_, io::in_quotes(pattern_), io::in_quotes(text), what);
  };
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (!match || !limits) fail("out of memory");
  pcre2_set_match_limit(limits.get(), kMaxMatchSteps);
  pcre2_set_heap_limit(limits.get(), kMaxMatchKiB);
  const char* data = text.data() ? text.data() : "";
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(data);
  const int result = pcre2_match(code, subject, text.size(), 0, 0, match.get(), limits.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) fail(message_of(result));
  return true;
}

std::string match_expression(std::string_view expression) { return "\\A(?:" + std::string(expression) + ")"; }

std::string escaped_for_regex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(".\\+*?()[]{}|^$").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

bool matches_wildcard(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

NamePatterns::NamePatterns(const std::vector<std::string>& patterns, std::string_view where) {
  for (const auto& pattern : patterns) {
    patterns_.emplace_back(without_lists(pattern), where);
    written_.push_back(pattern);
  }
}

void NamePatterns::add_ignored(std::string_view entry, std::string_view where) {
  constexpr std::string_view kExpression = "re:";
  const bool expression = entry.starts_with(kExpression);
  patterns_.emplace_back(
      expression ? match_expression(entry.substr(kExpression.size())) : "\\A" + escaped_for_regex(entry) + "\\Z",
      where);
  written_.emplace_back(entry);
}

std::optional<std::size_t> NamePatterns::first_match(std::string_view name) const {
  const auto found = std::ranges::find_if(patterns_, [&](const PythonRegex& regex) { return regex.search(name); });
  if (found == patterns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - patterns_.begin());
}

std::vector<std::size_t> NamePatterns::idle(const std::vector<std::string>& names) const {
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < size(); ++i)
    if (std::ranges::none_of(names, [&](const auto& name) { return patterns_[i].search(name); })) idle.push_back(i);
  return idle;
}

void NamePatterns::require_used(const std::vector<std::string>& names) const {
  for (const std::size_t i : idle(names)) {
    const std::string nearest = nearest_name(written_[i], names);
    io::fail<io::Error>("{}: pattern {} matches no module{}", patterns_[i].where(), io::in_quotes(written_[i]),
                        nearest.empty() ? "" : "; the nearest is " + io::in_quotes(nearest));
  }
}

// The rule over allowlist and blocklist, and what to say about entries without effect.

ModuleFilter::ModuleFilter(const ModuleList& allowlist, const ModuleList& blocklist, std::string source)
    : source_(std::move(source)),
      allow_(make_list(allowlist, "allowlist", source_)),
      block_(make_list(blocklist, "blocklist", source_)) {}

ModuleFilter::List ModuleFilter::make_list(const ModuleList& list, const char* key, const std::string& source) {
  List result;
  result.key = key;
  for (const std::string& type : list.types) result.types.push_back({type});
  for (std::size_t i = 0; i < list.names.size(); ++i) {
    result.names.push_back({list.names[i]});
    result.patterns.add(list.names[i], io::message("{}: key '{}.names[{}]'", source, key, i));
  }
  return result;
}

// Both look at every entry, not only up to the first that matches: an entry is unused only if no module needed it.
bool ModuleFilter::List::has_type(std::string_view type) {
  bool found = false;
  for (Entry& entry : types)
    if (entry.text == type) found = entry.used = true;
  return found;
}

bool ModuleFilter::List::has_name(std::string_view name) {
  bool found = false;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (patterns[i].search(name)) found = names[i].used = true;
  return found;
}

bool ModuleFilter::selects(std::string_view type, std::string_view name) {
  if (seen_types_.find(type) == seen_types_.end()) seen_types_.emplace(type);
  const bool allows_all = allow_.types.empty() && allow_.names.empty();
  const bool type_allowed = allow_.has_type(type), name_allowed = allow_.has_name(name);
  const bool type_blocked = block_.has_type(type), name_blocked = block_.has_name(name);
  return !type_blocked && (allows_all || type_allowed || name_allowed) && !name_blocked;
}

std::vector<UnusedEntry> ModuleFilter::unused_entries() const {
  std::vector<UnusedEntry> unused;
  const auto collect = [&](const std::vector<Entry>& entries, const std::string& key, bool is_type) {
    for (const Entry& entry : entries)
      if (!entry.used) unused.push_back({key, entry.text, message_for(key, entry.text, is_type)});
  };
  for (const List* list : {&allow_, &block_}) {
    collect(list->types, list->key + ".types", true);
    collect(list->names, list->key + ".names", false);
  }
  return unused;
}

std::string ModuleFilter::message_for(const std::string& key, const std::string& entry, bool is_type) const {
  std::string message = source_ + ": key '" + key + "': " + io::in_quotes(entry) + " matches no module of this model";
  if (!is_type) return message + " (names are regular expressions searched in the full name, case-sensitive)";
  message += " (types are class names without a module path)";
  // The class name behind a path is what people mean; else the nearest class of this model.
  const std::string last = entry.substr(entry.rfind('.') + 1);
  const std::string suggestion =
      seen_types_.count(last) != 0 ? last : closest(last, {seen_types_.begin(), seen_types_.end()});
  if (!suggestion.empty()) message += "; did you mean " + io::in_quotes(suggestion) + "?";
  return message;
}

}  // namespace fp8::configs
