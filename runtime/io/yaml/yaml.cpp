// SPDX-License-Identifier: Apache-2.0
// yaml-cpp's events become JSON here: its own nodes share what aliases repeat and keep both of two equal keys.
#include "fp8/runtime/io/yaml/yaml.h"

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <sstream>
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
  std::string pointer;
  YAML::anchor_t anchor = 0;
  std::string key = {};              ///< of a mapping: the key whose value comes next
  bool has_key = false;              ///< there is one
  std::int64_t line = 0;             ///< of that key
  std::vector<Json> merged = {};     ///< the mappings that << merges
  std::size_t values = 0, text = 0;  ///< before it began
  std::size_t depth = 1;             ///< of what is in it
};

class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& name) { result_.name = name; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail(mark, "a second document, allowed: one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { scalar(mark, anchor, nullptr, 0); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "an alias within its own anchor");
    const Anchored copy = found->second;
    if (open_.size() + copy.depth > kMaxDepth) fail_depth(mark);
    count(mark, copy.values, copy.text);
    add(mark, copy.value, copy.depth);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    for (std::size_t at = 0, length = 0; at < text.size(); at += length)
      if ((length = utf8_length(text, at)) == 0) fail(mark, "text that is not UTF-8");
    if (is_key()) return take_key(mark, tag, anchor, text);
    if (tag == "!") return scalar(mark, anchor, text, text.size());  // in quotes
    if (tag == "?" || tag.empty()) return scalar(mark, anchor, yaml_scalar(text), text.size());
    const std::string type = core_type(mark, tag);
    if (type == "str") return scalar(mark, anchor, text, text.size());
    Json value = yaml_scalar(text);
    if (type == "float" && value.is_number()) value = value.get<double>();
    const bool right = (type == "int" && value.is_number_integer()) || (type == "float" && value.is_number()) ||
                       (type == "bool" && value.is_boolean()) || (type == "null" && value.is_null());
    if (!right) fail(mark, "found " + in_quotes(text) + ", which is no " + type);
    scalar(mark, anchor, std::move(value), text.size());
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark, tag, "seq", anchor, Json::array());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark, tag, "map", anchor, Json::object());
  }
  void OnSequenceEnd() override { end(); }
  void OnMapEnd() override {
    // A merged member gives way to the mapping's own keys, a later one of a list to an earlier one.
    Open& map = open_.back();
    for (const Json& other : map.merged)
      for (const auto& [key, value] : other.items())
        if (!map.value.contains(key)) {
          map.value[key] = value;
          result_.lines.try_emplace(json_pointer(map.pointer, key), map.line);
        }
    end();
  }

  LocatedJson result() && { return std::move(result_); }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    io::fail<Error>("{}:{}:{}: {}", printable(result_.name, 4096), mark.line + 1, mark.column + 1, what);
  }

 private:
  [[noreturn]] void fail_depth(const YAML::Mark& mark) const {
    fail(mark, message("nested deeper than {} levels", kMaxDepth));
  }
  void count(const YAML::Mark& mark, std::size_t values, std::size_t text) {
    values_ += values;
    text_ += text;
    if (values_ > kMaxValues) fail(mark, message("more than {} values, aliases followed", kMaxValues));
    if (text_ > kMaxText) fail(mark, message("more than {} bytes of text, aliases followed", kMaxText));
  }
  std::string core_type(const YAML::Mark& mark, const std::string& tag) const {
    static const std::vector<std::string> kTypes = {"str", "int", "float", "bool", "null", "seq", "map"};
    const std::string type = tag.starts_with(kCoreTags) ? tag.substr(kCoreTags.size()) : "";
    if (std::ranges::find(kTypes, type) == kTypes.end())
      fail(mark, "found the tag " + in_quotes(tag) + ", allowed: !!str, !!int, !!float, !!bool, !!null, !!seq, !!map");
    return type;
  }

  bool is_key() const { return !open_.empty() && open_.back().value.is_object() && !open_.back().has_key; }
  void take_key(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& text) {
    if (tag != "!" && tag != "?" && !tag.empty() && core_type(mark, tag) != "str")
      fail(mark, "found the tag " + in_quotes(tag) + " at a key, allowed: text");
    if (anchor != 0) anchors_[anchor] = {.value = text, .text = text.size()};
    Open& map = open_.back();
    if (map.value.contains(text)) fail(mark, "duplicate key " + in_quotes(text));
    count(mark, 0, text.size());
    map.key = text;
    map.has_key = true;
    map.line = mark.line + 1;
  }
  std::string next_pointer() const {
    if (open_.empty()) return "";
    const Open& parent = open_.back();
    return json_pointer(parent.pointer, parent.value.is_array() ? std::to_string(parent.value.size()) : parent.key);
  }

  void scalar(const YAML::Mark& mark, YAML::anchor_t anchor, Json value, std::size_t text) {
    count(mark, 1, text);
    if (anchor != 0) anchors_[anchor] = {.value = value, .text = text};
    add(mark, std::move(value), 0);
  }
  void begin(const YAML::Mark& mark, const std::string& tag, const std::string& type, YAML::anchor_t anchor,
             Json value) {
    if (is_key()) fail(mark, "a key that is no text");
    if (tag != "?" && tag != "!" && !tag.empty() && core_type(mark, tag) != type)
      fail(mark, "found the tag " + in_quotes(tag) + ", allowed: !!" + type);
    if (open_.size() == kMaxDepth) fail_depth(mark);
    note_line(mark);
    open_.push_back(
        {.value = std::move(value), .pointer = next_pointer(), .anchor = anchor, .values = values_, .text = text_});
    count(mark, 1, 0);
    last_ = mark;
  }
  void end() {
    Open done = std::move(open_.back());
    open_.pop_back();
    if (done.anchor != 0) anchors_[done.anchor] = {done.value, values_ - done.values, text_ - done.text, done.depth};
    place(last_, std::move(done.value), done.depth);
  }
  void note_line(const YAML::Mark& mark) {
    const bool member = !open_.empty() && open_.back().value.is_object();
    result_.lines.try_emplace(next_pointer(), member ? open_.back().line : mark.line + 1);
  }
  void add(const YAML::Mark& mark, Json value, std::size_t depth) {
    if (is_key()) {
      if (!value.is_string()) fail(mark, "a key that is no text");
      return take_key(mark, "", 0, value.get<std::string>());
    }
    note_line(mark);
    place(mark, std::move(value), depth);
  }
  void place(const YAML::Mark& mark, Json value, std::size_t depth) {
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
    if (parent.key != "<<") {
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
  std::unordered_map<YAML::anchor_t, Anchored> anchors_;
  YAML::Mark last_;
  std::size_t values_ = 0, text_ = 0;
  int documents_ = 0;
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
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    builder.fail(error.mark, printable(error.msg));
  }
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

class Writer {
 public:
  explicit Writer(const std::map<std::string, std::string>& comments) : comments_(comments) {}

  std::string text(const Json& value) && {
    write(value, "");
    return std::string(out_.c_str()) + "\n";
  }

 private:
  void scalar(const Json& value) {
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      // yaml-cpp writes a carriage return as it is, and reads one before a line's end as part of that.
      const bool carriage_return = text.find('\r') != std::string::npos;
      if (!yaml_scalar(text).is_string() || text == "<<" || carriage_return) out_ << YAML::DoubleQuoted;
      out_ << text;
    } else if (value.is_null()) {
      out_ << YAML::Null;
    } else if (value.is_number_float()) {
      out_ << float_text(value.get<double>());
    } else if (value.is_boolean()) {
      out_ << value.get<bool>();
    } else {
      out_ << value.dump();
    }
  }
  void comment(const std::string& pointer) {
    const auto found = comments_.find(pointer);
    if (found != comments_.end()) out_ << YAML::Comment(found->second);
  }
  void write(const Json& value, const std::string& pointer) {
    if (!value.is_structured()) {
      scalar(value);
      return comment(pointer);
    }
    if (value.empty()) out_ << YAML::Flow;
    const bool map = value.is_object();
    if (map)
      out_ << YAML::BeginMap;
    else
      out_ << YAML::BeginSeq;
    std::size_t at = 0;
    for (const auto& [key, part] : value.items()) {
      const std::string name = map ? key : std::to_string(at++);
      const std::string inner = json_pointer(pointer, name);
      if (map) {
        out_ << YAML::Key;
        scalar(name);
        if (part.is_structured() && !part.empty()) comment(inner);
        out_ << YAML::Value;
      }
      write(part, inner);
    }
    if (map)
      out_ << YAML::EndMap;
    else
      out_ << YAML::EndSeq;
    if (value.empty()) comment(pointer);
  }

  YAML::Emitter out_;
  const std::map<std::string, std::string>& comments_;
};

}  // namespace

std::string yaml_text(const Json& value, const std::map<std::string, std::string>& comments) {
  return Writer(comments).text(value);
}

}  // namespace fp8::io
