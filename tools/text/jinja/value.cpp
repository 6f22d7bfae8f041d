// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/jinja/value.h"

#include <charconv>

#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestValue = 100;
constexpr std::size_t kNode = 64;  // bytes of a map's node, beside what it holds

int depth_of(Machine& m, const Value& value) {
  if (const auto* const list = value.list()) {
    if (list->form == List::Form::generator) m.fail("a generator stands inside a list or mapping, add |list");
    return list->depth;
  }
  if (const auto* const dict = value.dict()) return dict->depth;
  if (value.stays_alone()) m.fail("a " + type_of(value) + " stands inside a list or mapping, which is not supported");
  return 0;
}

void repr(Machine& m, std::string& out, const Value& value);

void repr_of_items(Machine& m, std::string& out, const List& list) {
  const bool tuple = list.form == List::Form::tuple;
  out += tuple ? '(' : '[';
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    repr(m, out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
}

void repr(Machine& m, std::string& out, const Value& value) {
  m.spend();
  m.allow(out.size());
  if (value.markup) m.fail("a list with a text that went through |safe is written out, which is not supported");
  if (const auto* const text = value.text()) {
    out += quoted(m, *text);
  } else if (value.undefined()) {
    out += "Undefined";
  } else if (const auto* const dict = value.dict()) {
    out += '{';
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out += ", ";
      out += quoted(m, dict->items[i].first) + ": ";
      repr(m, out, dict->items[i].second);
    }
    out += '}';
  } else if (const auto* const list = value.list(); list && list->form <= List::Form::tuple) {
    repr_of_items(m, out, *list);
  } else {
    out += text_of(m, value);
  }
}

/// Two numbers or two texts; empty for others. Bytes of UTF-8 are in the order of code points.
template <class Compare>
std::optional<bool> compared(Machine& m, const Value& a, const Value& b, const Compare& compare) {
  double x = 0, y = 0;
  std::int64_t i = 0, j = 0;
  if (as_integer(a, i) && as_integer(b, j)) return compare(i, j);
  if (as_number(a, x) && as_number(b, y)) return compare(x, y);
  if (!a.text() || !b.text()) return std::nullopt;
  m.spend_bytes(std::min(a.text()->size(), b.text()->size()));
  return compare(*a.text(), *b.text());
}

bool equal_items(Machine& m, const List& a, const List& b) {
  if (a.form != b.form || a.form == List::Form::view || a.form == List::Form::generator) {
    if (a.form <= List::Form::tuple && b.form <= List::Form::tuple) return false;
    m.fail("a view or generator is compared, add |list");
  }
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Value& x, const Value& y) { return equal(m, x, y); });
}

bool equal_dicts(Machine& m, const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* const other = b.find(m, item.first);
           return other && equal(m, item.second, *other);
         });
}

}  // namespace

HeldText held_text(std::string text) {
  struct Held {
    std::string text;
    Charge charge;
  };
  const std::size_t bytes = sizeof(Held) + text.capacity();
  auto held = std::make_shared<Held>(Held{std::move(text), Charge(bytes)});
  const auto* const inside = &held->text;
  return {std::move(held), inside};
}

const Value* Dict::find(Machine& m, std::string_view key) const {
  m.spend_search(key.size(), items.size());
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &items[found->second].second;
}

const Value* Names::find(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : &found->second;
}

void Names::set(const std::string& name, Value value) {
  const auto [place, added] = values.insert_or_assign(name, std::move(value));
  if (added) charge.add(kNode + sizeof *place + name.size());
}

Value make_list(Machine& m, std::vector<Value> items, List::Form form) {
  m.allow(items.size() * sizeof(Value));
  m.spend(items.size() + 1);
  auto list = std::make_shared<List>();
  list->charge.add(sizeof(List) + items.capacity() * sizeof(Value));
  for (const auto& item : items) list->depth = std::max(list->depth, depth_of(m, item) + 1);
  if (list->depth > kDeepestValue) m.fail("lists and mappings are nested too deeply");
  list->items = std::move(items);
  list->form = form;
  return list;
}

Value make_dict(Machine& m, std::vector<std::pair<std::string, Value>> items) {
  m.spend(items.size() + 1);
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : items) {
    m.spend_search(key.size(), items.size());
    dict->charge.add(kNode + sizeof(items[0]) + sizeof key + 2 * key.size());
    dict->depth = std::max(dict->depth, depth_of(m, value) + 1);
    const auto [place, added] = dict->index.try_emplace(key, dict->items.size());
    if (added)
      dict->items.emplace_back(key, std::move(value));
    else
      dict->items[place->second].second = std::move(value);
  }
  if (dict->depth > kDeepestValue) m.fail("lists and mappings are nested too deeply");
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value value_of(Machine& m, const io::Json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number()) {
    if (json.is_number_unsigned() &&
        json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      m.fail("the number " + json.dump() + " is too large");
    return json.get<std::int64_t>();
  }
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(value_of(m, item));
    return make_list(m, std::move(items));
  }
  std::vector<std::pair<std::string, Value>> items;
  for (const auto& [key, item] : json.items()) items.emplace_back(key, value_of(m, item));
  return make_dict(m, std::move(items));
}

std::string type_of(const Value& value) {
  if (const auto* const list = value.list()) {
    constexpr const char* kForms[] = {"list", "tuple", "view", "generator"};
    return kForms[static_cast<std::size_t>(list->form)];
  }
  constexpr const char* kNames[] = {"Undefined", "None", "bool",      "int",      "float",      "str",
                                    "list",      "dict", "namespace", "function", "LoopContext"};
  return kNames[value.data.index()];
}

bool truth(const Value& value) {
  if (const auto* const b = value.get<bool>()) return *b;
  if (const auto* const i = value.get<std::int64_t>()) return *i != 0;
  if (const auto* const d = value.get<double>()) return *d != 0;
  if (const auto* const text = value.text()) return !text->empty();
  if (const auto* const list = value.list()) return list->form == List::Form::generator || !list->items.empty();
  if (const auto* const dict = value.dict()) return !dict->items.empty();
  return !value.undefined() && !value.none();
}

bool equal(Machine& m, const Value& a, const Value& b) {
  m.spend();
  if (const auto same = compared(m, a, b, std::equal_to<>())) return *same;
  if (a.list() && b.list()) return a.list() == b.list() || equal_items(m, *a.list(), *b.list());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || equal_dicts(m, *a.dict(), *b.dict());
  if (a.get<std::shared_ptr<Loop>>() || b.get<std::shared_ptr<Loop>>()) m.fail("a loop is compared");
  if (const auto *const x_space = a.get<std::shared_ptr<Namespace>>(), *const y_space =
                                                                           b.get<std::shared_ptr<Namespace>>();
      x_space && y_space)
    return *x_space == *y_space;
  if (a.get<std::shared_ptr<const Callable>>() && b.get<std::shared_ptr<const Callable>>())
    m.fail("functions are compared");
  return (a.undefined() && b.undefined()) || (a.none() && b.none());
}

bool less(Machine& m, const Value& a, const Value& b) {
  m.spend();
  if (const auto before = compared(m, a, b, std::less<>())) return *before;
  m.fail("expected two numbers or two strings to put in order, found " + type_of(a) + " and " + type_of(b));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string written(buffer, end);
  const auto e = written.find('e');
  const bool negative = written[0] == '-';
  std::string digits;
  for (const char c : written.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  std::from_chars(written.data() + e + (written[e + 1] == '+' ? 2 : 1), written.data() + written.size(), exponent);
  std::string text;
  if (exponent < -4 || exponent >= 16) {
    text = digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "");
    const std::string power = std::to_string(std::abs(exponent));
    text += std::string(exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  } else if (exponent < 0) {
    text = "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    text = digits.substr(0, whole) + "." + (digits.size() > whole ? digits.substr(whole) : "0");
  }
  return (negative ? "-" : "") + text;
}

std::string text_of(Machine& m, const Value& value) {
  if (const auto* const text = value.text()) {
    m.spend_bytes(text->size());
    return *text;
  }
  if (value.undefined()) return "";
  if (value.none()) return "None";
  if (const auto* const b = value.get<bool>()) return *b ? "True" : "False";
  if (const auto* const i = value.get<std::int64_t>()) return std::to_string(*i);
  if (const auto* const d = value.get<double>()) return float_text(*d);
  const auto* const list = value.list();
  if (value.dict() || (list && list->form <= List::Form::tuple)) {
    std::string out;
    repr(m, out, value);
    m.allow(out.size());
    return out;
  }
  m.fail("a " + type_of(value) + " is written out, expected text or a value");
}

bool as_integer(const Value& value, std::int64_t& integer) {
  if (const auto* const i = value.get<std::int64_t>())
    integer = *i;
  else if (const auto* const b = value.get<bool>())
    integer = *b ? 1 : 0;
  else
    return false;
  return true;
}

bool as_number(const Value& value, double& number) {
  std::int64_t integer = 0;
  if (const auto* const d = value.get<double>())
    number = *d;
  else if (as_integer(value, integer))
    number = static_cast<double>(integer);
  else
    return false;
  return true;
}

std::vector<Value> items_of(Machine& m, const Value& value) {
  std::vector<Value> items;
  if (value.undefined()) return items;
  if (auto* const list = value.list()) {
    if (list->form == List::Form::generator) {
      if (list->used) m.fail("a generator is gone through a second time, add |list where it is made");
      list->used = true;
    }
    m.spend(list->items.size());
    m.allow(list->items.size() * sizeof(Value));
    return list->items;
  }
  if (const auto* const dict = value.dict()) {
    m.spend(dict->items.size());
    for (const auto& [key, item] : dict->items) items.emplace_back(key);
    return items;
  }
  if (const auto* const text = value.text()) {
    m.spend(text->size());
    for (std::size_t at = 0; at < text->size(); at += items.back().text()->size())
      items.emplace_back(text->substr(at, decode_at(*text, at).size));
    return items;
  }
  m.fail("expected a list, a mapping or a string to go through, found " + type_of(value));
}

std::int64_t length_of(Machine& m, const Value& value) {
  if (value.undefined()) return 0;
  if (const auto* const text = value.text()) {
    m.spend_bytes(text->size());
    return static_cast<std::int64_t>(character_count(*text));
  }
  if (const auto* const list = value.list(); list && list->form != List::Form::generator)
    return static_cast<std::int64_t>(list->items.size());
  if (const auto* const dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (const auto* const loop = value.get<std::shared_ptr<Loop>>())
    return static_cast<std::int64_t>((*loop)->items->items.size());
  m.fail("a " + type_of(value) + " has no length");
}

bool contains(Machine& m, const Value& container, const Value& item) {
  m.spend();
  if (const auto* const text = container.text()) {
    if (!item.text()) m.fail("expected a string to look for in a string, found " + type_of(item));
    m.spend_bytes(text->size());
    return find_text(*text, *item.text()) != std::string::npos;
  }
  if (const auto* const dict = container.dict()) {
    if (item.list() || item.dict()) m.fail("a " + type_of(item) + " can't be a key");
    return item.text() && dict->find(m, *item.text());
  }
  const auto items = items_of(m, container);
  return std::ranges::any_of(items, [&](const Value& one) { return equal(m, one, item); });
}

}  // namespace fp8::text::jinja
