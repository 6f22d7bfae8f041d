// SPDX-License-Identifier: Apache-2.0
// The values of a template, as Python has them: what a template sees and makes. Lists and mappings don't change once
// they are made, so that copies share them.
#pragma once
#include <map>
#include <variant>

#include "fp8/tools/text/jinja/machine.h"

namespace fp8::text::jinja {

struct Value;

/// A text that counts itself as held.
using HeldText = std::shared_ptr<const std::string>;
HeldText held_text(std::string text);

/// The value of a name that nothing was bound to; what: for the message where it is used.
struct Undefined {
  Undefined() = default;
  explicit Undefined(std::string what) : text(held_text(std::move(what))) {}
  std::string what() const { return text ? *text : "a value"; }
  HeldText text;
};
struct None {};

struct List {
  /// view: keys() and the like, range(); generator: what map and select give, which can be gone through once.
  enum class Form : std::uint8_t { list, tuple, view, generator };
  std::vector<Value> items;
  Form form = Form::list;
  int depth = 1;      ///< of lists and mappings inside, this one included
  bool used = false;  ///< a generator that was gone through
  Charge charge;
};

struct Dict {
  std::vector<std::pair<std::string, Value>> items;  ///< in the order of insertion
  std::map<std::string, std::size_t, std::less<>> index;
  int depth = 1;
  Charge charge;

  const Value* find(Machine& m, std::string_view key) const;
};

/// Values by their names.
struct Names {
  std::map<std::string, Value, std::less<>> values;
  Charge charge;

  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

/// namespace(...): the one thing that changes.
struct Namespace : Names {};

/// The variable `loop`.
struct Loop {
  std::shared_ptr<const List> items;
  std::size_t index = 0;                            ///< from 0
  std::shared_ptr<std::vector<Value>> last_values;  ///< of loop.changed()
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<Value(Machine&, Arguments&)> call;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, HeldText, std::shared_ptr<List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
               std::shared_ptr<Loop>>
      data;
  bool markup = false;  ///< a text that went through |safe, which others are escaped for when they are added to it

  Value() = default;
  Value(Undefined v) : data(std::move(v)) {}
  Value(None v) : data(v) {}
  Value(bool v) : data(v) {}
  Value(std::int64_t v) : data(v) {}
  Value(double v) : data(v) {}
  Value(std::string v) : data(held_text(std::move(v))) {}
  Value(const char*) = delete;  // would be a bool
  Value(std::shared_ptr<List> v) : data(std::move(v)) {}
  Value(std::shared_ptr<const Dict> v) : data(std::move(v)) {}
  Value(std::shared_ptr<Namespace> v) : data(std::move(v)) {}
  Value(std::shared_ptr<const Callable> v) : data(std::move(v)) {}
  Value(std::shared_ptr<Loop> v) : data(std::move(v)) {}

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  bool undefined() const { return get<Undefined>() != nullptr; }
  bool none() const { return get<None>() != nullptr; }
  /// A namespace, a loop or a function, which no list, mapping or namespace may hold.
  bool stays_alone() const {
    return get<std::shared_ptr<Namespace>>() || get<std::shared_ptr<Loop>>() || get<std::shared_ptr<const Callable>>();
  }
  const std::string* text() const {
    const auto* const held = get<HeldText>();
    return held ? held->get() : nullptr;
  }
  List* list() const {
    const auto* const held = get<std::shared_ptr<List>>();
    return held ? held->get() : nullptr;
  }
  const Dict* dict() const {
    const auto* const held = get<std::shared_ptr<const Dict>>();
    return held ? held->get() : nullptr;
  }
};

/// A list of the values. Throws where they nest too deeply or hold what must stay alone (a namespace).
Value make_list(Machine& m, std::vector<Value> items, List::Form form = List::Form::list);
/// A mapping; a key that comes again takes the place of the first.
Value make_dict(Machine& m, std::vector<std::pair<std::string, Value>> items);
Value value_of(Machine& m, const io::Json& json);

/// "str", "list", as Python calls it.
std::string type_of(const Value& value);
bool truth(const Value& value);
bool equal(Machine& m, const Value& a, const Value& b);
/// a < b. Throws where Python would.
bool less(Machine& m, const Value& a, const Value& b);
/// Python's str() and repr().
std::string text_of(Machine& m, const Value& value);
std::string float_text(double value);

/// An int or a bool as an int, what Python takes as an index.
bool as_integer(const Value& value, std::int64_t& integer);
/// Any number.
bool as_number(const Value& value, double& number);

/// The turns of a loop: items, keys, characters. A generator is used up. Throws for what can't be gone through.
std::vector<Value> items_of(Machine& m, const Value& value);
/// Python's len().
std::int64_t length_of(Machine& m, const Value& value);
/// Python's `item in container`.
bool contains(Machine& m, const Value& container, const Value& item);

// Python's strings, counted in code points. All texts are well-formed UTF-8.

std::size_t character_count(std::string_view text);
/// The byte where `what` last stands in `text`, or npos.
std::size_t find_last(Machine& m, std::string_view text, std::string_view what);

/// True for what str.isspace() takes, and so strip() and split().
bool is_space(std::uint32_t code_point);
/// Without spaces, or without the characters of `which` unless it is null, at its begin and at its end.
std::string_view stripped(std::string_view text, bool begin, bool end);
std::string_view stripped(Machine& m, std::string_view text, bool begin, bool end, const std::string* which);

/// repr() of a string.
std::string quoted(Machine& m, std::string_view text);

/// upper(), lower(), capitalize(), title(). Throws for other than ASCII letters, whose cases are a table of their own.
std::string upper_case(Machine& m, std::string_view text);
std::string lower_case(Machine& m, std::string_view text);
std::string capitalized(Machine& m, std::string_view text);
std::string title_case(Machine& m, std::string_view text);

/// str.replace(); count < 0: all.
std::string replaced(Machine& m, std::string_view text, std::string_view old, std::string_view with,
                     std::int64_t count = -1);
/// Views of `text`. str.split() and rsplit() without a separator and with one; most < 0: all.
using Parts = std::vector<std::string_view>;
Parts split_at_spaces(Machine& m, std::string_view text, std::int64_t most, bool from_right);
Parts split_at(Machine& m, std::string_view text, std::string_view separator, std::int64_t most, bool from_right);
/// str.splitlines()
Parts split_lines(Machine& m, std::string_view text, bool keep_ends);

}  // namespace fp8::text::jinja
