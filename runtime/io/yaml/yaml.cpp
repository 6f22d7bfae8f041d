// SPDX-License-Identifier: Apache-2.0
// The events of libyaml, which PyYAML reads with too, become JSON here.
#include "fp8/runtime/io/yaml/yaml.h"

#include <yaml.h>

#include <charconv>
#include <unordered_map>

namespace fp8::io {
namespace {

constexpr std::size_t kMaxDepth = 64, kMaxValues = std::size_t{1} << 18, kMaxText = std::size_t{16} << 20;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20;
constexpr std::string_view kCoreTags = "tag:yaml.org,2002:";

/// A finished value with the size of what it repeats.
struct Anchored {
  Json value;
  std::size_t values = 1, text = 0, depth = 1;
};

/// A sequence or mapping whose end has not come.
struct Open {
  Json value;
  std::string pointer, anchor;
  std::string key = {};              ///< of a mapping: the key whose value comes next
  bool has_key = false;              ///< there is one
  bool merges = false;               ///< that key is <<, not in quotes
  std::int64_t line = 0;             ///< of that key
  std::vector<Json> merged = {};     ///< the mappings that << merges
  std::size_t values = 0, text = 0;  ///< before it began
  std::size_t depth = 1;             ///< of what is in it
};

/// What a node's properties say; a missing one is empty.
struct Properties {
  yaml_mark_t mark;
  std::string anchor, tag;
};

std::string text_of(const yaml_char_t* text) {
  return text == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(text));
}

class Builder {
 public:
  explicit Builder(const std::string& name) { result_.name = name; }

  void take(const yaml_event_t& event) {
    const yaml_mark_t& mark = event.start_mark;
    const auto& scalar = event.data.scalar;
    const auto& sequence = event.data.sequence_start;
    const auto& map = event.data.mapping_start;
    switch (event.type) {
      case YAML_DOCUMENT_START_EVENT:
        if (++documents_ > 1) fail(mark, "a second document, allowed: one");
        return;
      case YAML_ALIAS_EVENT: return take_alias(mark, text_of(event.data.alias.anchor));
      case YAML_SCALAR_EVENT:
        return take_scalar({mark, text_of(scalar.anchor), text_of(scalar.tag)}, scalar.plain_implicit != 0,
                           {reinterpret_cast<const char*>(scalar.value), scalar.length});
      case YAML_SEQUENCE_START_EVENT:
        return begin({mark, text_of(sequence.anchor), text_of(sequence.tag)}, "seq", Json::array());
      case YAML_MAPPING_START_EVENT: return begin({mark, text_of(map.anchor), text_of(map.tag)}, "map", Json::object());
      case YAML_MAPPING_END_EVENT: merge(); [[fallthrough]];
      case YAML_SEQUENCE_END_EVENT: return end(mark);
      default: return;
    }
  }

  LocatedJson result() && { return std::move(result_); }

  [[noreturn]] void fail(const yaml_mark_t& mark, const std::string& what) const {
    io::fail<Error>("{}:{}:{}: {}", printable(result_.name, 4096), mark.line + 1, mark.column + 1, what);
  }

 private:
  [[noreturn]] void fail_depth(const yaml_mark_t& mark) const {
    fail(mark, message("nested deeper than {} levels", kMaxDepth));
  }
  void count(const yaml_mark_t& mark, std::size_t values, std::size_t text) {
    values_ += values;
    text_ += text;
    if (values_ > kMaxValues) fail(mark, message("more than {} values, aliases followed", kMaxValues));
    if (text_ > kMaxText) fail(mark, message("more than {} bytes of text, aliases followed", kMaxText));
  }
  std::string core_type(const yaml_mark_t& mark, const std::string& tag) const {
    static const std::vector<std::string> kTypes = {"str", "int", "float", "bool", "null", "seq", "map"};
    const std::string type = tag.starts_with(kCoreTags) ? tag.substr(kCoreTags.size()) : "";
    if (std::ranges::find(kTypes, type) == kTypes.end())
      fail(mark, "found the tag " + in_quotes(tag) + ", allowed: !!str, !!int, !!float, !!bool, !!null, !!seq, !!map");
    return type;
  }

  bool is_key() const { return !open_.empty() && open_.back().value.is_object() && !open_.back().has_key; }
  void take_key(const Properties& of, bool plain, const std::string& text) {
    if (!of.tag.empty() && core_type(of.mark, of.tag) != "str")
      fail(of.mark, "found the tag " + in_quotes(of.tag) + " at a key, allowed: text");
    refuse_second_anchor(of);
    keep(of.anchor, {.value = text, .text = text.size()});
    Open& map = open_.back();
    if (map.value.contains(text)) fail(of.mark, "duplicate key " + in_quotes(text));
    count(of.mark, 0, text.size());
    map.key = text;
    map.has_key = true;
    map.merges = plain && text == "<<";
    map.line = line_of(of.mark);
  }
  bool is_open(const std::string& anchor) const {
    return std::ranges::find(open_, anchor, &Open::anchor) != open_.end();
  }
  /// YAML lets a second one hide the first; PyYAML refuses it, for it is a mistake.
  void refuse_second_anchor(const Properties& of) const {
    if (!of.anchor.empty() && (anchors_.contains(of.anchor) || is_open(of.anchor)))
      fail(of.mark, "duplicate anchor " + in_quotes(of.anchor));
  }
  void keep(const std::string& anchor, Anchored value) {
    if (!anchor.empty()) anchors_[anchor] = std::move(value);
  }
  static std::int64_t line_of(const yaml_mark_t& mark) { return static_cast<std::int64_t>(mark.line) + 1; }
  std::string next_pointer() const {
    if (open_.empty()) return "";
    const Open& parent = open_.back();
    return json_pointer(parent.pointer, parent.value.is_array() ? std::to_string(parent.value.size()) : parent.key);
  }

  void take_alias(const yaml_mark_t& mark, const std::string& anchor) {
    if (is_open(anchor)) fail(mark, "an alias within its own anchor");
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "found no anchor " + in_quotes(anchor) + " before its alias");
    const Anchored copy = found->second;
    if (open_.size() + copy.depth > kMaxDepth) fail_depth(mark);
    count(mark, copy.values, copy.text);
    if (!is_key()) return add(mark, copy.value, copy.depth);
    if (!copy.value.is_string()) fail(mark, "a key that is no text");
    take_key({mark, "", ""}, /*plain=*/false, copy.value.get<std::string>());
  }
  /// plain: it stands without quotes and without a tag.
  void take_scalar(const Properties& of, bool plain, const std::string& text) {
    if (is_key()) return take_key(of, plain, text);
    Json value = plain ? yaml_scalar(text) : Json(text);
    if (!of.tag.empty()) value = tagged(of, text);
    count(of.mark, 1, text.size());
    refuse_second_anchor(of);
    keep(of.anchor, {.value = value, .text = text.size()});
    add(of.mark, std::move(value), 0);
  }
  Json tagged(const Properties& of, const std::string& text) const {
    const std::string type = core_type(of.mark, of.tag);
    if (type == "str") return text;
    Json value = yaml_scalar(text);
    if (type == "float" && value.is_number()) value = value.get<double>();
    const bool right = (type == "int" && value.is_number_integer()) || (type == "float" && value.is_number()) ||
                       (type == "bool" && value.is_boolean()) || (type == "null" && value.is_null());
    if (!right) fail(of.mark, "found " + in_quotes(text) + ", which is no " + type);
    return value;
  }

  void begin(const Properties& of, const std::string& type, Json value) {
    if (is_key()) fail(of.mark, "a key that is no text");
    if (!of.tag.empty() && core_type(of.mark, of.tag) != type)
      fail(of.mark, "found the tag " + in_quotes(of.tag) + ", allowed: !!" + type);
    if (open_.size() == kMaxDepth) fail_depth(of.mark);
    refuse_second_anchor(of);
    note_line(of.mark);
    open_.push_back(
        {.value = std::move(value), .pointer = next_pointer(), .anchor = of.anchor, .values = values_, .text = text_});
    count(of.mark, 1, 0);
  }
  void end(const yaml_mark_t& mark) {
    Open done = std::move(open_.back());
    open_.pop_back();
    keep(done.anchor, {done.value, values_ - done.values, text_ - done.text, done.depth});
    place(mark, std::move(done.value), done.depth);
  }
  /// A merged member gives way to the mapping's own keys, a later one of a list to an earlier one.
  void merge() {
    Open& map = open_.back();
    for (const Json& other : map.merged)
      for (const auto& [key, value] : other.items())
        if (!map.value.contains(key)) {
          map.value[key] = value;
          result_.lines.try_emplace(json_pointer(map.pointer, key), map.line);
        }
  }
  void note_line(const yaml_mark_t& mark) {
    const bool member = !open_.empty() && open_.back().value.is_object();
    result_.lines.try_emplace(next_pointer(), member ? open_.back().line : line_of(mark));
  }
  void add(const yaml_mark_t& mark, Json value, std::size_t depth) {
    note_line(mark);
    place(mark, std::move(value), depth);
  }
  void place(const yaml_mark_t& mark, Json value, std::size_t depth) {
    if (open_.empty()) {
      result_.value = std::move(value);
      return;
    }
    Open& parent = open_.back();
    parent.depth = std::max(parent.depth, depth + 1);
    if (parent.value.is_array()) {
      parent.value.push_back(std::move(value));
      return;
    }
    parent.has_key = false;
    if (!parent.merges) {
      parent.value[parent.key] = std::move(value);
      return;
    }
    if (value.is_object()) value = Json::array({std::move(value)});
    for (Json& other : value) {
      if (!other.is_object()) fail(mark, "<<: found a value that is no mapping, allowed: a mapping or a list of them");
      parent.merged.push_back(std::move(other));
    }
    if (!value.is_array()) fail(mark, "<<: found a value that is no mapping, allowed: a mapping or a list of them");
  }

  LocatedJson result_;
  std::vector<Open> open_;
  std::unordered_map<std::string, Anchored> anchors_;
  std::size_t values_ = 0, text_ = 0;
  int documents_ = 0;
};

/// libyaml's parser of `text`, which outlives it.
class Events {
 public:
  explicit Events(std::string_view text) : text_(text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);     // others would be guessed from the first bytes
    const char* const begin = text.empty() ? "" : text.data();  // libyaml takes no null
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(begin), text.size());
  }
  ~Events() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  /// The next event, until it is called again; null: there is none. `builder` puts what is wrong into words.
  const yaml_event_t* next(const Builder& builder) {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) fail(builder);
    return event_.type == YAML_STREAM_END_EVENT ? nullptr : &event_;
  }

 private:
  [[noreturn]] void fail(const Builder& builder) const {
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string problem = parser_.problem == nullptr ? "is no YAML" : parser_.problem;
    if (parser_.error == YAML_READER_ERROR) {  // a character, of which libyaml knows the place among the bytes alone
      const std::string_view before = text_.substr(0, parser_.problem_offset);
      const auto line = before.rfind('\n');
      builder.fail({.index = 0,
                    .line = static_cast<std::size_t>(std::ranges::count(before, '\n')),
                    .column = line == std::string_view::npos ? before.size() : before.size() - line - 1},
                   problem);
    }
    if (parser_.context == nullptr) builder.fail(parser_.problem_mark, problem);
    const std::size_t began = parser_.context_mark.line;
    builder.fail(
        parser_.problem_mark,
        message("{}{}, {}", parser_.context,
                began == parser_.problem_mark.line ? "" : message(" that begins in line {}", began + 1), problem));
  }

  std::string_view text_;
  yaml_parser_t parser_;
  yaml_event_t event_ = {};
};

}  // namespace

std::string json_pointer(const std::string& pointer, std::string_view key) {
  std::string result = pointer + "/";
  for (const char c : key) result += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return result;
}

std::string LocatedJson::place(std::string pointer) const {
  for (;;) {
    const auto found = lines.find(pointer);
    if (found != lines.end()) return name + ":" + std::to_string(found->second);
    if (pointer.empty()) return name;
    pointer.resize(pointer.rfind('/'));
  }
}

LocatedJson parse_yaml(std::string_view text, const std::string& name) {
  Builder builder(name);
  Events events(text);
  while (const yaml_event_t* event = events.next(builder)) builder.take(*event);
  return std::move(builder).result();
}

LocatedJson read_yaml(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMaxFileBytes);
  if (path.extension() != ".json") return parse_yaml(text, path.string());
  LocatedJson result{.value = parse_json(text, path.string()), .lines = {}, .name = path.string()};
  try {
    result.lines = parse_yaml(text, path.string()).lines;  // JSON is YAML, nearly
  } catch (const Error&) {
  }
  return result;
}

// The types of YAML 1.1 (yaml.org/type), as PyYAML resolves them:
//
//   null   ~ null Null NULL, nothing          bool  true yes on, false no off, each as written, Capital or UPPER
//   int    12 -12 1_000 0x1F 0o17 017 0b101   float 1.5 1. .5 1.5e+3 .inf -.inf .nan, and of YAML 1.2: 1e-3
//
// but not its numbers to the base of 60 (1:30 is text).

namespace {

/// One of three spellings of `word`: word, Word, WORD; a dot in front of it counts as no letter.
bool spells(std::string_view text, std::string_view word) {
  if (!std::ranges::equal(text, word, {}, [](char c) { return io::lower(c); })) return false;
  if (text[0] == '.') text.remove_prefix(1);
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto rest = text.substr(1);
  return std::ranges::none_of(rest, upper) || (upper(text[0]) && std::ranges::all_of(rest, upper));
}

std::optional<Json> integer(std::string_view digits, bool negative, int base) {
  std::string clean;
  for (const char c : digits)
    if (c != '_') clean += c;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), value, base);
  if (clean.empty() || error != std::errc() || end != clean.data() + clean.size()) return std::nullopt;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (negative && value <= kMost) return -static_cast<std::int64_t>(value);
  if (!negative) return value <= kMost ? Json(static_cast<std::int64_t>(value)) : Json(value);
  return std::nullopt;
}

std::optional<Json> number(const std::string& text) {
  std::string_view rest = text;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty()) return std::nullopt;
  if (spells(rest, ".inf"))
    return negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (is_digit(rest[0])) {
    for (const auto& [prefix, base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}})
      if (rest.starts_with(prefix)) return integer(rest.substr(2), negative, base);
    if (std::ranges::all_of(rest, [&](char c) { return is_digit(c) || c == '_'; }))
      return integer(rest, negative, rest.size() > 1 && rest[0] == '0' ? 8 : 10);  // "08" is text
  }
  // Of a float: digits, one dot, one exponent. from_chars knows "inf" and hexadecimal digits, too.
  if (!std::ranges::any_of(rest, is_digit) || (!is_digit(rest[0]) && rest[0] != '.')) return std::nullopt;
  std::string clean;
  for (const char c : rest)
    if (c != '_') clean += c;
  double value = 0;
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (error != std::errc() || end != clean.data() + clean.size()) return std::nullopt;
  return negative ? -value : value;
}

}  // namespace

Json yaml_scalar(const std::string& text) {
  if (text.empty() || text == "~" || spells(text, "null")) return nullptr;
  for (const char* word : {"true", "yes", "on"})
    if (spells(text, word)) return true;
  for (const char* word : {"false", "no", "off"})
    if (spells(text, word)) return false;
  if (spells(text, ".nan") || text == ".NaN") return std::numeric_limits<double>::quiet_NaN();
  if (const auto value = number(text)) return *value;
  return text;
}

}  // namespace fp8::io
