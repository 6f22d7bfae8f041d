// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/training/key_rows.h"

#include <charconv>

#include "fp8/configs/quant_config_keys.h"

namespace fp8::configs {
namespace {

using Type = Allowed::Type;

/// "zero_optimization." of "zero_optimization.stage", "" of "stage".
std::string_view parent_of(std::string_view path) { return path.substr(0, path.rfind('.') + 1); }
std::string_view leaf_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

std::vector<std::string> children_of(KeyRows rows, std::string_view parent) {
  std::vector<std::string> paths;
  for (const KeyRow& row : rows)
    if (parent_of(row.path) == parent) paths.emplace_back(row.path);
  return paths;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_word(const io::Json& value, std::string_view word, bool any_case) {
  if (word == "true" || word == "false") return value.is_boolean() && value.get<bool>() == (word == "true");
  if (word == "null") return value.is_null();
  if (word == "\"\"") return value.is_string() && value.get_ref<const std::string&>().empty();
  if (const auto number = number_of(word)) return value.is_number() && value.get<double>() == *number;
  if (!value.is_string()) return false;
  const std::string& found = value.get_ref<const std::string&>();
  return any_case ? io::lower(found) == io::lower(std::string(word)) : found == word;
}

bool is_one_of(const io::Json& value, std::string_view words, bool any_case) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(", "), words.size());
    if (is_word(value, words.substr(0, end), any_case)) return true;
    words.remove_prefix(std::min(end + 2, words.size()));
  }
  return false;
}

bool is_in_range(const Allowed& allowed, const io::Json& value) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (allowed.type == Type::integer && number != std::floor(number)) return false;
  return number >= allowed.low && number <= allowed.high;
}

bool is_array_of(const io::Json& value, bool (io::Json::*is)() const noexcept) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [is](const io::Json& v) { return (v.*is)(); });
}

bool fits(const Allowed& allowed, const io::Json& value) {
  if (allowed.null && value.is_null()) return true;
  if (allowed.also_boolean && value.is_boolean()) return true;
  if (allowed.nothing_in_it && value.is_array() && value.empty()) return true;
  if (allowed.automatic && value.is_string() && value.get_ref<const std::string&>() == "auto") return true;
  switch (allowed.type) {
    case Type::boolean: return value.is_boolean();
    case Type::integer:
    case Type::number: return is_in_range(allowed, value);
    case Type::text: return value.is_string();
    case Type::texts: return is_array_of(value, &io::Json::is_string);
    case Type::numbers: return is_array_of(value, &io::Json::is_number);
    case Type::words: return is_one_of(value, allowed.words, allowed.any_case);
    case Type::object: return value.is_object();
    case Type::anything: return true;
  }
  return false;
}

std::string limit_text(double limit) {
  return io::Json(limit == std::floor(limit) && std::abs(limit) < 1e15 ? io::Json(static_cast<std::int64_t>(limit))
                                                                       : io::Json(limit))
      .dump();
}

std::string range_text(const Allowed& allowed) {
  const std::string what = allowed.type == Type::integer ? "an integer" : "a number";
  const bool low = allowed.low != -allow::kNoLimit, high = allowed.high != allow::kNoLimit;
  if (low && high) return what + " from " + limit_text(allowed.low) + " to " + limit_text(allowed.high);
  if (low) return what + " >= " + limit_text(allowed.low);
  return high ? what + " <= " + limit_text(allowed.high) : what;
}

std::string type_text(const KeyRow& row, KeyRows rows) {
  switch (row.allowed.type) {
    case Type::boolean: return "true, false";
    case Type::integer:
    case Type::number: return range_text(row.allowed);
    case Type::text: return "a string";
    case Type::texts: return "an array of strings";
    case Type::numbers: return "an array of numbers";
    case Type::words: return *row.allowed.words != '\0' ? row.allowed.words : "no such key";
    case Type::object: break;
    case Type::anything: return "anything";
  }
  std::vector<std::string> keys;
  for (const auto& path : children_of(rows, std::string(row.path) + ".")) keys.emplace_back(leaf_of(path));
  return keys.empty() ? "an object" : "an object with the keys " + io::joined_first(keys);
}

std::string allowed_text(const KeyRow& row, KeyRows rows) {
  std::string text = type_text(row, rows);
  if (row.allowed.also_boolean) text += ", true, false";
  if (row.allowed.null) text += ", null";
  if (row.allowed.automatic) text += ", \"auto\"";
  if (row.allowed.nothing_in_it) text += ", []";
  return row.use == KeyUse::refused ? text + "; " + row.note : text;
}

/// The nearest key beside it, unless one of exactly this name stands elsewhere.
std::string nearest_path(KeyRows rows, const std::string& parent, const std::string& key) {
  constexpr std::size_t kTypingError = 2;
  std::vector<std::string> beside;
  for (const auto& path : children_of(rows, parent)) beside.emplace_back(leaf_of(path));
  const std::string near = closest(key, beside);
  if (edit_distance(std::string_view(key).substr(0, 64), near) <= kTypingError) return parent + near;
  for (const KeyRow& row : rows)
    if (leaf_of(row.path) == key) return row.path;
  return parent + near;
}

struct Walk {
  KeyRows rows;
  std::string source, prefix;
  std::vector<std::string> problems = {};

  void object(const io::Json& json, const std::string& parent) {
    for (const auto& [key, value] : json.items()) {
      if (problems.size() > kMostProblems) return;
      member(parent, key, value);
    }
  }

  void add(std::string problem) {
    if (problems.size() < kMostProblems) return problems.push_back(std::move(problem));
    if (problems.size() == kMostProblems)
      problems.push_back(source + ": more than " + std::to_string(kMostProblems) + " problems");
  }

  void member(const std::string& parent, const std::string& key, const io::Json& value) {
    const KeyRow* row = key.find('.') == std::string::npos ? find_row(rows, parent + key) : nullptr;
    if (row == nullptr)
      return add(io::message("{}: unknown key {}, did you mean '{}{}'?", source, io::in_quotes(prefix + parent + key),
                             prefix, nearest_path(rows, parent, key)));
    const std::string path = parent + key;
    if (!fits(row->allowed, value))
      return add(io::message("{}: found {}, allowed: {}", key_where(source, prefix + path), detail::found_text(value),
                             allowed_text(*row, rows)));
    if (value.is_object() && !children_of(rows, path + ".").empty()) object(value, path + ".");
  }
};

void add_meanings(const io::Json& json, KeyRows rows, const std::string& parent, std::vector<KeyMeaning>& found) {
  for (const auto& [key, value] : json.items()) {
    const KeyRow* row = key.find('.') == std::string::npos ? find_row(rows, parent + key) : nullptr;
    if (row == nullptr) continue;
    if (value.is_object() && !children_of(rows, parent + key + ".").empty())
      add_meanings(value, rows, parent + key + ".", found);
    else
      found.push_back({parent + key, detail::found_text(value), row});
  }
}

}  // namespace

std::vector<std::string> key_problems(const io::Json& json, const std::string& source, KeyRows rows,
                                      const std::string& prefix) {
  if (!json.is_object()) {
    const std::string where = prefix.empty() ? source : key_where(source, prefix.substr(0, prefix.size() - 1));
    return {where + ": found " + detail::found_text(json) + ", allowed: an object with the keys " +
            io::joined_first(children_of(rows, ""))};
  }
  Walk walk{rows, source, prefix};
  walk.object(json, "");
  return std::move(walk.problems);
}

std::vector<KeyMeaning> key_meanings(const io::Json& json, KeyRows rows) {
  std::vector<KeyMeaning> found;
  if (json.is_object()) add_meanings(json, rows, "", found);
  return found;
}

const KeyRow* find_row(KeyRows rows, const std::string& path) {
  const auto row = std::ranges::find_if(rows, [&](const KeyRow& r) { return path == r.path; });
  return row != rows.end() ? &*row : nullptr;
}

std::string key_where(const std::string& source, const std::string& path) { return source + ": key '" + path + "'"; }

io::Json with_standards(const io::Json& json, KeyRows rows) {
  io::Json all = io::Json::object();
  for (const KeyRow& row : rows)
    if (*row.standard != '\0') all[row.path] = io::Json::parse(row.standard);
  all.update(json);
  return all;
}

const io::Json* find_value(const io::Json& json, const std::string& path) {
  const io::Json* at = &json;
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    if (!at->is_object()) return nullptr;
    const auto member = at->find(std::string(rest.substr(0, end)));
    if (member == at->end()) return nullptr;
    at = &*member;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return at->is_null() ? nullptr : at;
}

bool is_true(const io::Json& json, const std::string& path) {
  const io::Json* value = find_value(json, path);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

int share_of_keys(const io::Json& json, KeyRows rows) {
  constexpr std::size_t kMostKeys = 200;
  if (!json.is_object() || json.empty()) return 0;
  const auto known = children_of(rows, "");
  std::size_t points = 0, keys = 0;
  for (const auto& [key, value] : json.items()) {
    if (++keys > kMostKeys) break;
    if (std::ranges::find(known, key) != known.end())
      points += 2;
    else if (key.size() >= 5 && edit_distance(key.substr(0, 64), closest(key, known)) <= 2)
      points += 1;
  }
  return static_cast<int>(points * 50 / keys);
}

}  // namespace fp8::configs
