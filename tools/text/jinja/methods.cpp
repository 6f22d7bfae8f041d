// SPDX-License-Identifier: Apache-2.0
// The methods and attributes of values. A method of Python's that is not in the tables is refused: without it, its name
// would be looked for among the keys of a mapping. See filters.h.
#include <algorithm>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/text/jinja/filters.h"
#include "fp8/tools/text/jinja/machine.h"
#include "fp8/tools/text/jinja/value.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

using Method = Value (*)(Machine& m, const Value& self, const Arguments& arguments);

struct Row {
  std::string_view name;
  Method method;  ///< null: Python has it, we don't
};

Value strip_as(Machine& m, const char* name, const Value& self, const Arguments& a, bool begin, bool end) {
  const Given given(m, name, a, {"chars"});
  return std::string(stripped(m, *self.text(), begin, end, given.text_or_none(0)));
}
Value strip(Machine& m, const Value& s, const Arguments& a) { return strip_as(m, "strip", s, a, true, true); }
Value lstrip(Machine& m, const Value& s, const Arguments& a) { return strip_as(m, "lstrip", s, a, true, false); }
Value rstrip(Machine& m, const Value& s, const Arguments& a) { return strip_as(m, "rstrip", s, a, false, true); }

Value list_of(Machine& m, const Parts& parts) {
  std::vector<Value> all;
  all.reserve(parts.size());
  for (const auto part : parts) all.emplace_back(std::string(part));
  return make_list(m, std::move(all));
}

Value split_as(Machine& m, const Value& self, const Arguments& a, bool from_right) {
  const Given given(m, "split", a, {"sep", "maxsplit"});
  const auto most = given.integer(1, -1);
  const auto* const separator = given.text_or_none(0);
  if (separator && separator->empty()) m.fail("split: the separator is empty");
  return list_of(m, separator ? split_at(m, *self.text(), *separator, most, from_right)
                              : split_at_spaces(m, *self.text(), most, from_right));
}
Value split(Machine& m, const Value& s, const Arguments& a) { return split_as(m, s, a, false); }
Value rsplit(Machine& m, const Value& s, const Arguments& a) { return split_as(m, s, a, true); }

Value splitlines(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "splitlines", a, {"keepends"});
  return list_of(m, split_lines(m, *self.text(), given.flag(0, false)));
}

Value partition_as(Machine& m, const Value& self, const Arguments& a, bool from_right) {
  const Given given(m, "partition", a, {"sep"});
  const std::string &text = *self.text(), &separator = given.text(0);
  if (separator.empty()) m.fail("partition: the separator is empty");
  m.spend_bytes(text.size());
  const auto at = from_right ? find_last(m, text, separator) : find_text(text, separator);
  std::vector<Value> parts;
  if (at == std::string::npos)
    parts = {Value(from_right ? std::string() : text), Value(std::string()), Value(from_right ? text : std::string())};
  else
    parts = {Value(text.substr(0, at)), Value(separator), Value(text.substr(at + separator.size()))};
  return make_list(m, std::move(parts), List::Form::tuple);
}
Value partition(Machine& m, const Value& s, const Arguments& a) { return partition_as(m, s, a, false); }
Value rpartition(Machine& m, const Value& s, const Arguments& a) { return partition_as(m, s, a, true); }

Value has_end(Machine& m, const char* name, const Value& self, const Arguments& a, bool at_begin) {
  const Given given(m, name, a, {"prefix"});
  const auto fits = [&](const Value& one) {
    if (!one.text()) m.fail(std::string(name) + ": expected a string or a tuple of strings, found " + type_of(one));
    m.spend();
    m.spend_bytes(one.text()->size());
    return at_begin ? self.text()->starts_with(*one.text()) : self.text()->ends_with(*one.text());
  };
  const auto* const several = given.at(0).list();
  if (several && several->form == List::Form::tuple) return std::ranges::any_of(several->items, fits);
  return fits(given.at(0));
}
Value startswith(Machine& m, const Value& s, const Arguments& a) { return has_end(m, "startswith", s, a, true); }
Value endswith(Machine& m, const Value& s, const Arguments& a) { return has_end(m, "endswith", s, a, false); }

Value replace_method(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "replace", a, {"old", "new", "count"});
  return replaced(m, *self.text(), given.text(0), given.text(1), given.integer(2, -1));
}

Value place_of(Machine& m, const char* name, const Value& self, const Arguments& a, bool from_right, bool must) {
  const Given given(m, name, a, {"sub"});
  m.spend_bytes(2 * self.text()->size());
  const auto at = from_right ? find_last(m, *self.text(), given.text(0)) : find_text(*self.text(), given.text(0));
  if (at == std::string::npos && must)
    m.fail(std::string(name) + ": " + io::in_quotes(given.text(0)) + " is not there");
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(character_count(std::string_view(*self.text()).substr(0, at)));
}
Value find(Machine& m, const Value& s, const Arguments& a) { return place_of(m, "find", s, a, false, false); }
Value rfind(Machine& m, const Value& s, const Arguments& a) { return place_of(m, "rfind", s, a, true, false); }
Value index(Machine& m, const Value& s, const Arguments& a) { return place_of(m, "index", s, a, false, true); }

Value count(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "count", a, {"sub"});
  const std::string &text = *self.text(), &what = given.text(0);
  m.spend_bytes(text.size());
  if (what.empty()) return static_cast<std::int64_t>(character_count(text) + 1);
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = find_text(text, what, at)) != std::string::npos; at += what.size(), ++found) m.spend();
  return found;
}

Value upper_method(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "upper", a, {});
  return upper_case(m, *s.text());
}
Value lower_method(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "lower", a, {});
  return lower_case(m, *s.text());
}
Value capitalize_method(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "capitalize", a, {});
  return capitalized(m, *s.text());
}
Value title_method(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "title", a, {});
  return title_case(m, *s.text());
}

Value join_method(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "join", a, {"iterable"});
  std::string text;
  bool begun = false;
  for (const auto& item : items_of(m, given.at(0))) {
    if (!item.text()) m.fail("join: expected strings, found " + type_of(item));
    m.allow(text.size() + self.text()->size() + item.text()->size());
    if (begun) text += *self.text();
    begun = true;
    text += *item.text();
  }
  return text;
}

Value removeprefix(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "removeprefix", a, {"prefix"});
  return s.text()->starts_with(given.text(0)) ? s.text()->substr(given.text(0).size()) : *s.text();
}
Value removesuffix(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "removesuffix", a, {"suffix"});
  return s.text()->ends_with(given.text(0)) ? s.text()->substr(0, s.text()->size() - given.text(0).size()) : *s.text();
}

bool all_of_ascii(Machine& m, const Value& s, bool (*is)(char)) {
  m.spend_bytes(s.text()->size());
  if (std::ranges::any_of(*s.text(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    m.fail("the kind of letters beyond ASCII is asked for, which is not supported");
  return !s.text()->empty() && std::ranges::all_of(*s.text(), is);
}
bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
Value isdigit(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "isdigit", a, {});
  return all_of_ascii(m, s, digit);
}
Value isalpha(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "isalpha", a, {});
  return all_of_ascii(m, s, letter);
}
Value isalnum(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "isalnum", a, {});
  return all_of_ascii(m, s, [](char c) { return digit(c) || letter(c); });
}
Value isspace(Machine& m, const Value& s, const Arguments& a) {
  const Given given(m, "isspace", a, {});
  return !s.text()->empty() && stripped(m, *s.text(), true, false, nullptr).empty();
}

Value get(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "get", a, {"key", "default"});
  if (given.at(0).list() || given.at(0).dict()) m.fail("get: a " + type_of(given.at(0)) + " can't be a key");
  const Value* const found = given.at(0).text() ? self.dict()->find(m, *given.at(0).text()) : nullptr;
  return found ? *found : given.find(1) ? *given.find(1) : Value(None{});
}

Value view_of(Machine& m, const char* name, const Value& self, const Arguments& a, bool keys, bool values) {
  const Given given(m, name, a, {});
  std::vector<Value> all;
  for (const auto& [key, value] : self.dict()->items)
    all.push_back(keys && values ? make_list(m, {Value(key), value}, List::Form::tuple) : keys ? Value(key) : value);
  return make_list(m, std::move(all), List::Form::view);
}
Value keys(Machine& m, const Value& s, const Arguments& a) { return view_of(m, "keys", s, a, true, false); }
Value values(Machine& m, const Value& s, const Arguments& a) { return view_of(m, "values", s, a, false, true); }
Value pairs(Machine& m, const Value& s, const Arguments& a) { return view_of(m, "items", s, a, true, true); }

Value list_index(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "index", a, {"value"});
  const auto& all = self.list()->items;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (equal(m, all[i], given.at(0))) return static_cast<std::int64_t>(i);
  m.fail("index: the value is not there");
}
Value list_count(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "count", a, {"value"});
  return static_cast<std::int64_t>(
      std::ranges::count_if(self.list()->items, [&](const Value& one) { return equal(m, one, given.at(0)); }));
}
Value copy(Machine& m, const Value& self, const Arguments& a) {
  const Given given(m, "copy", a, {});
  return self;
}

constexpr Row kOfText[] = {{"capitalize", capitalize_method},
                           {"casefold", nullptr},
                           {"center", nullptr},
                           {"count", count},
                           {"encode", nullptr},
                           {"endswith", endswith},
                           {"expandtabs", nullptr},
                           {"find", find},
                           {"format", nullptr},
                           {"format_map", nullptr},
                           {"index", index},
                           {"isalnum", isalnum},
                           {"isalpha", isalpha},
                           {"isascii", nullptr},
                           {"isdecimal", nullptr},
                           {"isdigit", isdigit},
                           {"isidentifier", nullptr},
                           {"islower", nullptr},
                           {"isnumeric", nullptr},
                           {"isprintable", nullptr},
                           {"isspace", isspace},
                           {"istitle", nullptr},
                           {"isupper", nullptr},
                           {"join", join_method},
                           {"ljust", nullptr},
                           {"lower", lower_method},
                           {"lstrip", lstrip},
                           {"maketrans", nullptr},
                           {"partition", partition},
                           {"removeprefix", removeprefix},
                           {"removesuffix", removesuffix},
                           {"replace", replace_method},
                           {"rfind", rfind},
                           {"rindex", nullptr},
                           {"rjust", nullptr},
                           {"rpartition", rpartition},
                           {"rsplit", rsplit},
                           {"rstrip", rstrip},
                           {"split", split},
                           {"splitlines", splitlines},
                           {"startswith", startswith},
                           {"strip", strip},
                           {"swapcase", nullptr},
                           {"title", title_method},
                           {"translate", nullptr},
                           {"upper", upper_method},
                           {"zfill", nullptr}};
constexpr Row kOfDict[] = {{"clear", nullptr},      {"copy", copy},      {"fromkeys", nullptr}, {"get", get},
                           {"items", pairs},        {"keys", keys},      {"pop", nullptr},      {"popitem", nullptr},
                           {"setdefault", nullptr}, {"update", nullptr}, {"values", values}};
constexpr Row kOfList[] = {{"append", nullptr}, {"clear", nullptr},    {"copy", copy},      {"count", list_count},
                           {"extend", nullptr}, {"index", list_index}, {"insert", nullptr}, {"pop", nullptr},
                           {"remove", nullptr}, {"reverse", nullptr},  {"sort", nullptr}};
constexpr Row kOfTuple[] = {{"count", list_count}, {"index", list_index}};
constexpr Row kOfView[] = {{"isdisjoint", nullptr}, {"mapping", nullptr}, {"start", nullptr}, {"stop", nullptr},
                           {"step", nullptr},       {"count", nullptr},   {"index", nullptr}, {"close", nullptr},
                           {"send", nullptr},       {"throw", nullptr}};
constexpr Row kOfNumber[] = {{"as_integer_ratio", nullptr}, {"bit_count", nullptr},   {"bit_length", nullptr},
                             {"conjugate", nullptr},        {"denominator", nullptr}, {"from_bytes", nullptr},
                             {"fromhex", nullptr},          {"hex", nullptr},         {"imag", nullptr},
                             {"is_integer", nullptr},       {"numerator", nullptr},   {"real", nullptr},
                             {"to_bytes", nullptr}};

template <std::size_t N>
Value from_table(Machine& m, const Row (&rows)[N], const Value& self, const std::string& name) {
  for (const auto& row : rows) {
    if (row.name != name) continue;
    if (!row.method) m.fail("the method " + io::in_quotes(name) + " of a " + type_of(self) + " is not supported");
    return std::make_shared<const Callable>(Callable{
        name, [self, method = row.method](Machine& machine, Arguments& a) { return method(machine, self, a); }});
  }
  return Undefined();
}

Undefined missing(const std::string& name, const std::string& owner) {
  return Undefined("'" + io::printable(name, 200) + "' of a " + owner);
}

Value of_loop(Machine& m, const std::shared_ptr<Loop>& loop, const std::string& name) {
  const auto& items = loop->items->items;
  const auto index = static_cast<std::int64_t>(loop->index), size = static_cast<std::int64_t>(items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return std::int64_t{1};
  if (name == "depth0") return std::int64_t{0};
  if (name == "previtem")
    return index > 0 ? items[loop->index - 1] : Value(Undefined("loop.previtem of the first item"));
  if (name == "nextitem")
    return index + 1 < size ? items[loop->index + 1] : Value(Undefined("loop.nextitem of the last item"));
  if (name == "cycle" || name == "changed") {
    const bool cycle = name == "cycle";
    return std::make_shared<const Callable>(Callable{name, [loop, cycle](Machine& machine, Arguments& a) -> Value {
                                                       if (!a.named.empty() || (cycle && a.positional.empty()))
                                                         machine.fail("loop: expected values");
                                                       if (cycle)
                                                         return a.positional[loop->index % a.positional.size()];
                                                       const Value before = make_list(machine, *loop->last_values),
                                                                   now = make_list(machine, a.positional);
                                                       const bool changed =
                                                           loop->last_values->empty() || !equal(machine, before, now);
                                                       if (a.positional.empty())
                                                         machine.fail("loop.changed: expected values");
                                                       *loop->last_values = a.positional;
                                                       return changed;
                                                     }});
  }
  m.fail("loop." + io::printable(name, 60) + " is not supported");
}

/// Python's value.name where that is a method that is known, else Undefined. Throws for one that is not known.
Value method_of(Machine& m, const Value& value, const std::string& name) {
  if (value.text()) return from_table(m, kOfText, value, name);
  if (value.dict()) return from_table(m, kOfDict, value, name);
  if (const auto* const list = value.list()) {
    if (list->form == List::Form::list) return from_table(m, kOfList, value, name);
    if (list->form == List::Form::tuple) return from_table(m, kOfTuple, value, name);
    return from_table(m, kOfView, value, name);
  }
  double number = 0;
  return as_number(value, number) ? from_table(m, kOfNumber, value, name) : Undefined();
}

}  // namespace

Value attribute_of(Machine& m, const Value& value, const std::string& name) {
  if (const auto* const nothing = value.get<Undefined>())
    m.fail(nothing->what() + " is undefined, so that it has no " + io::in_quotes(name));
  if (name.starts_with("__")) m.fail("attributes that begin with '__' are not supported, found " + io::in_quotes(name));
  if (const auto* const loop = value.get<std::shared_ptr<Loop>>()) return of_loop(m, *loop, name);
  if (value.get<std::shared_ptr<const Callable>>()) m.fail("attributes of functions are not supported");
  if (const auto* const space = value.get<std::shared_ptr<Namespace>>()) {
    ++m.namespace_reads;
    m.spend_search(name.size(), (*space)->values.size());
    const Value* const found = (*space)->find(name);
    return found ? *found : missing(name, "namespace");
  }
  Value method = method_of(m, value, name);
  if (!method.undefined()) return method;
  const Value* const found = value.dict() ? value.dict()->find(m, name) : nullptr;
  return found ? *found : missing(name, type_of(value));
}

Value item_of(Machine& m, const Value& value, const Value& key) {
  if (const auto* const nothing = value.get<Undefined>())
    m.fail(nothing->what() + " is undefined, so that it has no items");
  if (value.dict() && key.text())
    if (const Value* const found = value.dict()->find(m, *key.text())) return *found;
  if (key.text()) return attribute_of(m, value, *key.text());
  std::int64_t index = 0;
  const auto* const list = value.list();
  if (list && list->form > List::Form::tuple) m.fail("a " + type_of(value) + " is indexed, add |list");
  if (value.get<std::shared_ptr<Loop>>() || value.get<std::shared_ptr<const Callable>>())
    m.fail("a " + type_of(value) + " is indexed");
  if ((list || value.text()) && as_integer(key, index)) {
    const auto size = length_of(m, value);
    if (index < 0) index += size;
    if (index < 0 || index >= size) return Undefined("item " + std::to_string(index) + " of a " + type_of(value));
    if (list) return list->items[static_cast<std::size_t>(index)];
    return slice_of(m, value, index, index + 1, None{});
  }
  return Undefined("an item of a " + type_of(value));
}

}  // namespace fp8::text::jinja
