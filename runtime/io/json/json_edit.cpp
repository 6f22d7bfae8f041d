// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMaxEditBytes = std::uint64_t{64} << 20;
constexpr std::string_view kSpace = " \t\r\n";

std::size_t skip_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// Behind the string whose quote is at `at`. The text is JSON: each string has an end.
std::size_t skip_string(std::string_view text, std::size_t at) {
  ensure(at < text.size() && text[at] == '"', "a string's quote");
  for (++at; text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

// Behind the value that starts at `at`.
std::size_t skip_value(std::string_view text, std::size_t at) {
  if (text[at] == '"') return skip_string(text, at);
  if (text[at] != '{' && text[at] != '[') return std::min(text.find_first_of(" \t\r\n,}]", at), text.size());
  for (int depth = 0;;) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, at);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
    if (depth == 0) return at;
  }
}

}  // namespace

JsonEdit::JsonEdit(std::string text, std::string name) : text_(std::move(text)), name_(std::move(name)) {
  const Json value = parse_python_json(text_, name_);
  if (!value.is_object()) fail<Error>("{}: expected an object, found {}", printable(name_, 4096), value.type_name());
  scan();
}

void JsonEdit::scan() {
  members_.clear();
  open_ = skip_space(text_, 0);
  std::size_t at = skip_space(text_, open_ + 1);
  while (text_[at] != '}') {
    Member m;
    m.begin = at;
    m.colon = skip_string(text_, at);
    m.key = parse_json(std::string_view(text_).substr(m.begin, m.colon - m.begin), name_).get<std::string>();
    m.value = skip_space(text_, text_.find(':', m.colon) + 1);
    m.end = skip_value(text_, m.value);
    at = skip_space(text_, m.end);
    if (text_[at] == ',') at = skip_space(text_, at + 1);
    members_.push_back(std::move(m));
  }
}

const JsonEdit::Member* JsonEdit::find(const std::string& key) const {
  for (const Member& m : members_)
    if (m.key == key) return &m;
  return nullptr;
}

bool JsonEdit::contains(const std::string& key) const { return find(key) != nullptr; }

// The text between '{' and the first key: nothing, a blank, or a line end and the indentation.
std::string JsonEdit::space_before_first() const {
  if (members_.empty()) return "\n  ";
  return text_.substr(open_ + 1, members_.front().begin - open_ - 1);
}

// The value as text that fits its place: on one line where the object is, else with the object's indentation.
std::string JsonEdit::shaped(const Json& value) const {
  const std::string space = space_before_first();
  const std::size_t line = space.rfind('\n');
  const bool one_line = line == std::string::npos;
  std::string plain = json_text(name_, value, one_line ? -1 : 1);  // one blank per level
  plain.pop_back();
  if (one_line) return plain;
  const std::string unit = space.substr(line + 1), line_end = line > 0 && space[line - 1] == '\r' ? "\r\n" : "\n";
  std::string out;
  for (std::size_t at = 0; at < plain.size(); ++at) {
    if (plain[at] != '\n') {
      out += plain[at];
      continue;
    }
    out += line_end + unit;
    for (; plain[at + 1] == ' '; ++at) out += unit;
  }
  return out;
}

void JsonEdit::set(const std::string& key, const Json& value) {
  const std::string shape = shaped(value);
  if (const Member* m = find(key)) {
    text_.replace(m->value, m->end - m->value, shape);
  } else {
    std::string member = json_text(name_, Json(key), -1);
    member.pop_back();
    if (members_.empty()) {
      text_.replace(open_ + 1, text_.find('}', open_) - open_ - 1, "\n  " + member + ": " + shape + "\n");
    } else {
      // Between two members as between the last two, between key and value as in the last.
      const Member& last = members_.back();
      const std::string between = members_.size() > 1
                                      ? text_.substr(members_.end()[-2].end, last.begin - members_.end()[-2].end)
                                      : "," + (space_before_first().empty() ? " " : space_before_first());
      text_.insert(last.end, between + member + text_.substr(last.colon, last.value - last.colon) + shape);
    }
  }
  scan();
}

void JsonEdit::erase(const std::string& key) {
  const Member* m = find(key);
  if (m == nullptr) return;
  const std::size_t i = static_cast<std::size_t>(m - members_.data());
  if (i + 1 < members_.size())
    text_.erase(m->begin, members_[i + 1].begin - m->begin);
  else if (i > 0)
    text_.erase(members_[i - 1].end, m->end - members_[i - 1].end);
  else
    text_.erase(open_ + 1, m->end - open_ - 1);
  scan();
}

void JsonEdit::erase_below(const std::string& key) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member m = members_[i];
    if (text_[m.value] != '{') continue;
    JsonEdit inner(text_.substr(m.value, m.end - m.value), name_);
    inner.erase_below(key);
    inner.erase(key);
    text_.replace(m.value, m.end - m.value, inner.text());
    scan();
  }
}

void JsonEdit::apply(const Json& edits) {
  for (const auto& [key, value] : edits.get_ref<const Json::object_t&>())
    if (value.is_null())
      erase(key);
    else
      set(key, value);
}

JsonEdit read_json_edit(const std::filesystem::path& path) {
  return JsonEdit(read_file(path, kMaxEditBytes), path.string());
}

namespace {

std::string excerpt(const Json& value) {
  return value.is_null() ? "nothing" : printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 80);
}

std::optional<Difference> find_difference(const Json& was, const Json& is, const std::string& path) {
  if (was == is) return std::nullopt;
  if (!was.is_object() || !is.is_object()) return Difference{path, excerpt(was), excerpt(is)};
  const std::string before = path.empty() ? "" : path + ": ";
  for (const auto& [key, value] : was.items()) {
    if (auto found = find_difference(value, is.value(key, Json()), before + printable(key))) return found;
  }
  for (const auto& [key, value] : is.items()) {
    if (auto found = find_difference(was.value(key, Json()), value, before + printable(key))) return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> first_difference(const Json& was, const Json& is) { return find_difference(was, is, ""); }

std::string difference(const Json& was, const Json& is) {
  const auto found = first_difference(was, is);
  return found.has_value() ? "'" + found->path + "' was " + found->was + ", is " + found->is : "";
}

}  // namespace fp8::io
