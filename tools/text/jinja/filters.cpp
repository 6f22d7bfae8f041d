// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/jinja/filters.h"

#include <charconv>

#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

Value length(Machine& m, const Value& v, const Given&) { return length_of(m, v); }

Value safe(Machine& m, const Value& v, const Given&) {
  Value text = text_of(m, v);
  text.markup = true;
  return text;
}

Value items(Machine& m, const Value& v, const Given&) {
  std::vector<Value> pairs;
  if (!v.undefined()) {
    if (!v.dict()) m.fail("items: expected a mapping, found " + type_of(v));
    for (const auto& [key, value] : v.dict()->items)
      pairs.push_back(make_list(m, {Value(key), value}, List::Form::tuple));
  }
  return make_list(m, std::move(pairs), List::Form::generator);
}

Value defaulted(Machine& m, const Value& v, const Given& given) {
  if (!v.undefined() && !(given.flag(1, false) && !truth(v))) return v;
  return given.find(0) ? *given.find(0) : Value(std::string());
}

Value replace(Machine& m, const Value& v, const Given& given) {
  const bool all = !given.find(2) || given.find(2)->none();
  return replaced(m, text_of(m, v), text_of(m, given.at(0)), text_of(m, given.at(1)), all ? -1 : given.integer(2, -1));
}

Value first(Machine& m, const Value& v, const Given&) {
  if (v.text() && !v.text()->empty()) return v.text()->substr(0, decode_at(*v.text(), 0).size);
  auto all = items_of(m, v);
  return all.empty() ? Value(Undefined("the first item of nothing")) : std::move(all.front());
}

Value last(Machine& m, const Value& v, const Given&) {
  if (v.undefined() || (v.list() && v.list()->form == List::Form::generator))
    m.fail("last: expected a list, found " + type_of(v));
  if (v.text() && !v.text()->empty())
    return v.text()->substr(v.text()->size() - decode_before(*v.text(), v.text()->size()).size);
  auto all = items_of(m, v);
  return all.empty() ? Value(Undefined("the last item of nothing")) : std::move(all.back());
}

Value reverse(Machine& m, const Value& v, const Given&) {
  if (v.text()) return slice_of(m, v, None{}, None{}, std::int64_t{-1});
  auto all = items_of(m, v);
  std::ranges::reverse(all);
  return make_list(m, std::move(all), List::Form::generator);
}

/// "function.name" of each item; a part of digits is an index.
Value attribute_at(Machine& m, Value item, const Value& path, const Value* otherwise = nullptr) {
  if (!path.text()) return item_of(m, item, path);
  std::string_view rest = *path.text();
  m.spend_bytes(rest.size());
  for (bool more = true; more;) {
    m.spend();
    const auto dot = rest.find('.');
    const auto part = rest.substr(0, dot);
    more = dot != std::string_view::npos;
    if (more) rest.remove_prefix(dot + 1);
    std::int64_t index = 0;
    const bool number =
        !part.empty() && part.size() < 10 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (number) std::from_chars(part.data(), part.data() + part.size(), index);
    item = item_of(m, item, number ? Value(index) : Value(std::string(part)));
    if (otherwise && !otherwise->none() && item.undefined()) item = *otherwise;
  }
  return item;
}

Value join(Machine& m, const Value& v, const Given& given) {
  const std::string between = given.find(0) ? text_of(m, *given.find(0)) : "";
  std::string text;
  bool begun = false;
  for (const auto& item : items_of(m, v)) {
    const bool part = given.find(1) && !given.find(1)->none();
    const std::string next = text_of(m, part ? attribute_at(m, item, *given.find(1)) : item);
    m.allow(text.size() + between.size() + next.size());
    if (begun) text += between;
    begun = true;
    text += next;
  }
  return text;
}

/// Of the first `count` positional arguments, those behind.
Arguments behind(const Arguments& a, std::size_t count) {
  return {
      {a.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, a.positional.size())), a.positional.end()},
      a.named};
}

Value map(Machine& m, const Value& v, const Arguments& a) {
  std::vector<Value> out;
  if (a.positional.empty()) {
    const Given given(m, "map", a, {"attribute", "default"});
    for (const auto& item : items_of(m, v)) out.push_back(attribute_at(m, item, given.at(0), given.find(1)));
    return make_list(m, std::move(out), List::Form::generator);
  }
  const auto* const name = a.positional[0].text();
  const Function* const filter = name ? find_filter(*name) : nullptr;
  if (!filter)
    m.fail("map: the filter " + (name ? io::in_quotes(*name) : type_of(a.positional[0])) + " is not supported");
  const Arguments rest = behind(a, 1);
  for (const auto& item : items_of(m, v)) out.push_back((*filter)(m, item, rest));
  return make_list(m, std::move(out), List::Form::generator);
}

/// The items whose attribute, or which themselves, pass a test (reject: fail it).
template <bool kByAttribute, bool kWanted>
Value chosen(Machine& m, const Value& v, const Arguments& a) {
  const std::string filter = std::string(kWanted ? "select" : "reject") + (kByAttribute ? "attr" : "");
  constexpr std::size_t kFrom = kByAttribute ? 1 : 0;
  if (!a.named.empty() || a.positional.size() < kFrom)
    m.fail(filter + ": expected an attribute, a test and what that takes");
  const Test* test = nullptr;
  std::vector<Value> rest;
  if (a.positional.size() > kFrom) {
    const auto* const name = a.positional[kFrom].text();
    test = name ? find_test(*name) : nullptr;
    rest = behind(a, kFrom + 1).positional;
    if (!test)
      m.fail(io::message("{}: the test {} is not supported", filter,
                         name ? io::in_quotes(*name) : type_of(a.positional[kFrom])));
    if (rest.size() != test->arguments)
      m.fail(io::message("{}: the test {} is given {} arguments, allowed: {}", filter, io::in_quotes(*name),
                         rest.size(), test->arguments));
  }
  std::vector<Value> out;
  for (const auto& item : items_of(m, v)) {
    const Value looked_at = kByAttribute ? attribute_at(m, item, a.positional[0]) : item;
    if ((test ? test->apply(m, looked_at, rest) : truth(looked_at)) == kWanted) out.push_back(item);
  }
  return make_list(m, std::move(out), List::Form::generator);
}

/// The key that sort and unique compare by.
Value key_of(Machine& m, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute && !attribute->none() ? attribute_at(m, item, *attribute) : item;
  if (key.text() && !case_sensitive) key = lower_case(m, *key.text());
  if (const auto* const real = key.get<double>(); real && std::isnan(*real)) m.fail("NaN is put in order");
  return key;
}

Value sorted(Machine& m, const std::vector<Value>& all, const std::function<Value(const Value&)>& key, bool reverse) {
  const Charge held(3 * all.size() * sizeof(Value));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& item : all) keyed.emplace_back(key(item), item);
  std::ranges::stable_sort(keyed, [&](const auto& x, const auto& y) {
    return reverse ? less(m, y.first, x.first) : less(m, x.first, y.first);
  });
  std::vector<Value> out;
  for (auto& [k, item] : keyed) out.push_back(std::move(item));
  return make_list(m, std::move(out));
}

Value sort(Machine& m, const Value& v, const Given& given) {
  const auto* const attribute = given.find(2);
  if (attribute && attribute->text() && attribute->text()->find(',') != std::string::npos)
    m.fail("sort: several attributes are not supported");
  return sorted(
      m, items_of(m, v), [&](const Value& item) { return key_of(m, item, attribute, given.flag(1, false)); },
      given.flag(0, false));
}

Value dictsort(Machine& m, const Value& v, const Given& given) {
  const std::string by = given.find(1) ? given.text(1) : "key";
  if (!v.dict() || (by != "key" && by != "value")) m.fail("dictsort: expected a mapping, by 'key' or 'value'");
  std::vector<Value> pairs;
  for (const auto& [key, value] : v.dict()->items)
    pairs.push_back(make_list(m, {Value(key), value}, List::Form::tuple));
  return sorted(
      m, pairs,
      [&](const Value& pair) {
        return key_of(m, pair.list()->items[by == "key" ? 0 : 1], nullptr, given.flag(0, false));
      },
      given.flag(2, false));
}

Value unique(Machine& m, const Value& v, const Given& given) {
  std::vector<Value> out, keys;
  for (const auto& item : items_of(m, v)) {
    Value key = key_of(m, item, given.find(1), given.flag(0, false));
    if (key.list() || key.dict()) m.fail("unique: a " + type_of(key) + " is not supported");
    if (std::ranges::any_of(keys, [&](const Value& seen) { return equal(m, seen, key); })) continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return make_list(m, std::move(out), List::Form::generator);
}

Value indent(Machine& m, const Value& v, const Given& given) {
  if (!v.text()) m.fail("indent: expected a string, found " + type_of(v));
  const auto width = given.find(0) && given.find(0)->text() ? 0 : given.integer(0, 4);
  m.allow(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)));
  const std::string by = given.find(0) && given.find(0)->text()
                             ? given.text(0)
                             : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  const bool blank = given.flag(2, false);
  std::string text = given.flag(1, false) ? by : "";
  const std::string ended = text_of(m, v) + "\n";
  bool begun = false;
  for (const auto line : split_lines(m, ended, false)) {
    m.allow(text.size() + 1 + by.size() + line.size());
    if (begun) text += '\n';
    if (begun && (blank || !line.empty())) text += by;
    begun = true;
    text += line;
  }
  return text;
}

Value absolute(Machine& m, const Value& v, const Given&) {
  if (const auto* const real = v.get<double>()) return std::fabs(*real);
  std::int64_t integer = 0;
  if (!as_integer(v, integer)) m.fail("abs: expected a number, found " + type_of(v));
  return integer < 0 ? arithmetic_of(m, "-", Value(std::int64_t{0}), v) : Value(integer);
}

/// Python's float() of a string; false where it would not take it.
bool read_real(Machine& m, const std::string& text, double& real) {
  m.spend_bytes(text.size());
  std::string_view rest = stripped(text, true, true);
  if (rest.find('_') != std::string_view::npos || !io::is_ascii(rest))
    m.fail("a number with '_' or letters beyond ASCII is read, which is not supported");
  if (rest.starts_with('+') && rest.substr(1, 1) != "-") rest.remove_prefix(1);
  if (rest.find('(') != std::string_view::npos) return false;  // nan(...)
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), real);
  if (error == std::errc::result_out_of_range) m.fail("the number " + io::in_quotes(rest) + " is too large");
  return error == std::errc() && end == rest.data() + rest.size() && !rest.empty();
}

Value integer(Machine& m, const Value& v, const Given& given) {
  if (given.integer(1, 10) != 10) m.fail("int: other bases than 10 are not supported");
  if (const auto* const missing = v.get<Undefined>()) m.fail(missing->what() + " is undefined and is made an int");
  const Value otherwise = given.find(0) ? *given.find(0) : Value(std::int64_t{0});
  std::int64_t whole = 0;
  if (as_integer(v, whole)) return whole;
  double real = 0;
  if (const auto* const text = v.text()) {
    m.spend_bytes(text->size());
    std::string_view digits = stripped(*text, true, true);
    if (digits.starts_with('+') && digits.substr(1, 1) != "-") digits.remove_prefix(1);
    if (const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
        error == std::errc() && end == digits.data() + digits.size())
      return whole;
    if (!read_real(m, *text, real)) return otherwise;
  } else if (!as_number(v, real)) {
    return otherwise;
  }
  if (!std::isfinite(real)) return otherwise;
  if (std::fabs(real) >= 9e15) m.fail("int: the number is too large");
  return static_cast<std::int64_t>(real);
}

Value real(Machine& m, const Value& v, const Given& given) {
  if (const auto* const missing = v.get<Undefined>()) m.fail(missing->what() + " is undefined and is made a float");
  double value = 0;
  if (as_number(v, value) || (v.text() && read_real(m, *v.text(), value))) return value;
  return given.find(0) ? *given.find(0) : Value(0.0);
}

/// Unlike str.title(): a word begins behind white space, - ( { [ or < alone.
Value title(Machine& m, const Value& v, const Given&) {
  std::string text = lower_case(m, text_of(m, v));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || std::string_view("-({[<").find(text[i - 1]) != std::string_view::npos ||
                        is_space(static_cast<unsigned char>(text[i - 1]));
    if (begins) text[i] = io::upper(text[i]);
  }
  return text;
}

constexpr Function kFilters[] = {
    {"abs", {}, absolute},
    {"capitalize", {}, [](auto& m, auto& v, auto&) -> Value { return capitalized(m, text_of(m, v)); }},
    {"count", {}, length, "length"},
    {"d", {"default_value", "boolean"}, defaulted, "default"},
    {"default", {"default_value", "boolean"}, defaulted},
    {"dictsort", {"case_sensitive", "by", "reverse"}, dictsort},
    {"first", {}, first},
    {"float", {"default"}, real},
    {"indent", {"width", "first", "blank"}, indent},
    {"int", {"default", "base"}, integer},
    {"items", {}, items},
    {"join", {"d", "attribute"}, join},
    {"last", {}, last},
    {"length", {}, length},
    {"list", {}, [](auto& m, auto& v, auto&) -> Value { return make_list(m, items_of(m, v)); }},
    {"lower", {}, [](auto& m, auto& v, auto&) -> Value { return lower_case(m, text_of(m, v)); }},
    {"map", {}, nullptr, "map", map},
    {"reject", {}, nullptr, "reject", chosen<false, false>},
    {"rejectattr", {}, nullptr, "rejectattr", chosen<true, false>},
    {"replace", {"old", "new", "count"}, replace},
    {"reverse", {}, reverse},
    {"safe", {}, safe},
    {"select", {}, nullptr, "select", chosen<false, true>},
    {"selectattr", {}, nullptr, "selectattr", chosen<true, true>},
    {"sort", {"reverse", "case_sensitive", "attribute"}, sort},
    {"string", {}, [](auto& m, auto& v, auto&) -> Value { return text_of(m, v); }},
    {"title", {}, title},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, to_json},
    {"trim",
     {"chars"},
     [](auto& m, auto& v, auto& given) -> Value {
       return std::string(stripped(m, text_of(m, v), true, true, given.text_or_none(0)));
     }},
    {"unique", {"case_sensitive", "attribute"}, unique},
    {"upper", {}, [](auto& m, auto& v, auto&) -> Value { return upper_case(m, text_of(m, v)); }}};

}  // namespace

const Function* find_filter(std::string_view name) {
  const auto* const found = std::ranges::find(kFilters, name, &Function::name);
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace fp8::text::jinja
