// SPDX-License-Identifier: Apache-2.0
// The methods and attributes of values. A method of Python's that is not in the tables is refused: without it, its name
// would be looked for among the keys of a mapping. See filters.h.

#include "fp8/tools/text/jinja/filters.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

template <bool kBegin, bool kEnd>
Value strip(Machine& m, const Value& self, const Given& given) {
  return std::string(stripped(m, *self.text(), kBegin, kEnd, given.text_or_none(0)));
}

Value list_of(Machine& m, const Parts& parts) {
  std::vector<Value> all;
  all.reserve(parts.size());
  for (const auto part : parts) all.emplace_back(std::string(part));
  return make_list(m, std::move(all));
}

template <bool kFromRight>
Value split(Machine& m, const Value& self, const Given& given) {
  const auto most = given.integer(1, -1);
  const auto* const separator = given.text_or_none(0);
  if (separator && separator->empty()) given.fail("the separator is empty");
  return list_of(m, separator ? split_at(m, *self.text(), *separator, most, kFromRight)
                              : split_at_spaces(m, *self.text(), most, kFromRight));
}

template <bool kFromRight>
Value partition(Machine& m, const Value& self, const Given& given) {
  const std::string &text = *self.text(), &separator = given.text(0);
  if (separator.empty()) given.fail("the separator is empty");
  m.spend_bytes(text.size());
  const auto at = kFromRight ? find_last(m, text, separator) : find_text(text, separator);
  std::vector<Value> parts;
  if (at == std::string::npos)
    parts = {Value(kFromRight ? std::string() : text), Value(std::string()), Value(kFromRight ? text : std::string())};
  else
    parts = {Value(text.substr(0, at)), Value(separator), Value(text.substr(at + separator.size()))};
  return make_list(m, std::move(parts), List::Form::tuple);
}

template <bool kAtBegin>
Value has_end(Machine& m, const Value& self, const Given& given) {
  const auto fits = [&](const Value& one) {
    if (!one.text()) given.fail("expected a string or a tuple of strings, found " + type_of(one));
    m.spend();
    m.spend_bytes(one.text()->size());
    return kAtBegin ? self.text()->starts_with(*one.text()) : self.text()->ends_with(*one.text());
  };
  const auto* const several = given.at(0).list();
  if (several && several->form == List::Form::tuple) return std::ranges::any_of(several->items, fits);
  return fits(given.at(0));
}

template <bool kFromRight, bool kMust>
Value place_of(Machine& m, const Value& self, const Given& given) {
  m.spend_bytes(2 * self.text()->size());
  const auto at = kFromRight ? find_last(m, *self.text(), given.text(0)) : find_text(*self.text(), given.text(0));
  if (at == std::string::npos && kMust) given.fail(io::in_quotes(given.text(0)) + " is not there");
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(character_count(std::string_view(*self.text()).substr(0, at)));
}

Value count(Machine& m, const Value& self, const Given& given) {
  const std::string &text = *self.text(), &what = given.text(0);
  m.spend_bytes(text.size());
  if (what.empty()) return static_cast<std::int64_t>(character_count(text) + 1);
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = find_text(text, what, at)) != std::string::npos; at += what.size(), ++found) m.spend();
  return found;
}

Value join(Machine& m, const Value& self, const Given& given) {
  std::string text;
  bool begun = false;
  for (const auto& item : items_of(m, given.at(0))) {
    if (!item.text()) given.fail("expected strings, found " + type_of(item));
    m.allow(text.size() + self.text()->size() + item.text()->size());
    if (begun) text += *self.text();
    begun = true;
    text += *item.text();
  }
  return text;
}

Value remove_prefix(Machine&, const Value& s, const Given& given) {
  return s.text()->starts_with(given.text(0)) ? s.text()->substr(given.text(0).size()) : *s.text();
}
Value remove_suffix(Machine&, const Value& s, const Given& given) {
  return s.text()->ends_with(given.text(0)) ? s.text()->substr(0, s.text()->size() - given.text(0).size()) : *s.text();
}

bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool digit_or_letter(char c) { return digit(c) || letter(c); }

template <bool (*kIs)(char)>
Value is_all(Machine& m, const Value& s, const Given&) {
  m.spend_bytes(s.text()->size());
  if (!io::is_ascii(*s.text())) m.fail("the kind of letters beyond ASCII is asked for, which is not supported");
  return !s.text()->empty() && std::ranges::all_of(*s.text(), kIs);
}

Value get(Machine& m, const Value& self, const Given& given) {
  if (given.at(0).list() || given.at(0).dict()) given.fail("a " + type_of(given.at(0)) + " can't be a key");
  const Value* const found = given.at(0).text() ? self.dict()->find(m, *given.at(0).text()) : nullptr;
  return found ? *found : given.find(1) ? *given.find(1) : Value(None{});
}

template <bool kKeys, bool kValues>
Value view_of(Machine& m, const Value& self, const Given&) {
  std::vector<Value> all;
  for (const auto& [key, value] : self.dict()->items)
    all.push_back(kKeys && kValues ? make_list(m, {Value(key), value}, List::Form::tuple) : kKeys ? Value(key) : value);
  return make_list(m, std::move(all), List::Form::view);
}

Value list_index(Machine& m, const Value& self, const Given& given) {
  const auto& all = self.list()->items;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (equal(m, all[i], given.at(0))) return static_cast<std::int64_t>(i);
  given.fail("the value is not there");
}
Value list_count(Machine& m, const Value& self, const Given& given) {
  return static_cast<std::int64_t>(
      std::ranges::count_if(self.list()->items, [&](const Value& one) { return equal(m, one, given.at(0)); }));
}
Value copy(Machine&, const Value& self, const Given&) { return self; }

constexpr Function kOfText[] = {
    {"capitalize", {}, [](auto& m, auto& s, auto&) -> Value { return capitalized(m, *s.text()); }},
    {"count", {"sub"}, count},
    {"endswith", {"prefix"}, has_end<false>},
    {"find", {"sub"}, place_of<false, false>},
    {"index", {"sub"}, place_of<false, true>},
    {"isalnum", {}, is_all<digit_or_letter>},
    {"isalpha", {}, is_all<letter>},
    {"isdigit", {}, is_all<digit>},
    {"isspace",
     {},
     [](auto& m, auto& s, auto&) -> Value {
       return !s.text()->empty() && stripped(m, *s.text(), true, false, nullptr).empty();
     }},
    {"join", {"iterable"}, join},
    {"lower", {}, [](auto& m, auto& s, auto&) -> Value { return lower_case(m, *s.text()); }},
    {"lstrip", {"chars"}, strip<true, false>},
    {"partition", {"sep"}, partition<false>},
    {"removeprefix", {"prefix"}, remove_prefix},
    {"removesuffix", {"suffix"}, remove_suffix},
    {"replace",
     {"old", "new", "count"},
     [](auto& m, auto& s, auto& given) -> Value {
       return replaced(m, *s.text(), given.text(0), given.text(1), given.integer(2, -1));
     }},
    {"rfind", {"sub"}, place_of<true, false>},
    {"rpartition", {"sep"}, partition<true>, "partition"},
    {"rsplit", {"sep", "maxsplit"}, split<true>, "split"},
    {"rstrip", {"chars"}, strip<false, true>},
    {"split", {"sep", "maxsplit"}, split<false>},
    {"splitlines",
     {"keepends"},
     [](auto& m, auto& s, auto& given) -> Value {
       return list_of(m, split_lines(m, *s.text(), given.flag(0, false)));
     }},
    {"startswith", {"prefix"}, has_end<true>},
    {"strip", {"chars"}, strip<true, true>},
    {"title", {}, [](auto& m, auto& s, auto&) -> Value { return title_case(m, *s.text()); }},
    {"upper", {}, [](auto& m, auto& s, auto&) -> Value { return upper_case(m, *s.text()); }}};
constexpr Function kOfDict[] = {{"copy", {}, copy},
                                {"get", {"key", "default"}, get},
                                {"items", {}, view_of<true, true>},
                                {"keys", {}, view_of<true, false>},
                                {"values", {}, view_of<false, true>}};
constexpr Function kOfList[] = {{"count", {"value"}, list_count}, {"index", {"value"}, list_index}, {"copy", {}, copy}};

/// Methods that Python has and that are not supported, a space behind each.
constexpr std::string_view kRefusedOfText =
    "casefold center encode expandtabs format format_map isascii isdecimal isidentifier islower isnumeric isprintable "
    "istitle isupper ljust maketrans rindex rjust swapcase translate zfill ";
constexpr std::string_view kRefusedOfDict = "clear fromkeys pop popitem setdefault update ";
constexpr std::string_view kRefusedOfList = "append clear extend insert pop remove reverse sort ";
constexpr std::string_view kRefusedOfView = "isdisjoint mapping start stop step count index close send throw ";
constexpr std::string_view kRefusedOfNumber =
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator real "
    "to_bytes ";

Value from_table(Machine& m, std::span<const Function> known, std::string_view refused, const Value& self,
                 const std::string& name) {
  if (const auto row = std::ranges::find(known, name, &Function::name); row != known.end())
    return std::make_shared<const Callable>(
        Callable{name, [self, &method = *row](Machine& machine, Arguments& a) { return method(machine, self, a); }});
  for (std::size_t end = 0; (end = refused.find(' ')) != std::string_view::npos; refused.remove_prefix(end + 1))
    if (refused.substr(0, end) == name)
      m.fail("the method " + io::in_quotes(name) + " of a " + type_of(self) + " is not supported");
  return Undefined();
}

Undefined missing(const std::string& name, const std::string& owner) {
  return Undefined("'" + io::printable(name, 200) + "' of a " + owner);
}

Value cycled(Machine& m, const Loop& loop, const Arguments& a) {
  if (!a.named.empty() || a.positional.empty()) m.fail("loop: expected values");
  return a.positional[loop.index % a.positional.size()];
}

Value changed(Machine& m, const Loop& loop, const Arguments& a) {
  if (!a.named.empty()) m.fail("loop: expected values");
  if (a.positional.empty()) m.fail("loop.changed: expected values");
  const Value before = make_list(m, *loop.last_values), now = make_list(m, a.positional);
  const bool differs = loop.last_values->empty() || !equal(m, before, now);
  *loop.last_values = a.positional;
  return differs;
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
  if (name == "cycle" || name == "changed")
    return std::make_shared<const Callable>(
        Callable{name, [loop, cycle = name == "cycle"](Machine& machine, Arguments& a) {
                   return cycle ? cycled(machine, *loop, a) : changed(machine, *loop, a);
                 }});
  m.fail("loop." + io::printable(name, 60) + " is not supported");
}

/// Python's value.name where that is a method that is known, else Undefined. Throws for one that is not known.
Value method_of(Machine& m, const Value& value, const std::string& name) {
  if (value.text()) return from_table(m, kOfText, kRefusedOfText, value, name);
  if (value.dict()) return from_table(m, kOfDict, kRefusedOfDict, value, name);
  if (const auto* const list = value.list()) {
    if (list->form == List::Form::list) return from_table(m, kOfList, kRefusedOfList, value, name);
    if (list->form == List::Form::tuple) return from_table(m, std::span(kOfList).first(2), "", value, name);
    return from_table(m, {}, kRefusedOfView, value, name);
  }
  double number = 0;
  return as_number(value, number) ? from_table(m, {}, kRefusedOfNumber, value, name) : Undefined();
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
