// SPDX-License-Identifier: Apache-2.0
// The filters and tests of templates, and the methods and attributes of their values: one table each.
#pragma once
#include <array>

#include "fp8/tools/text/jinja/value.h"

namespace fp8::text::jinja {

/// Arguments of a function by position or by name.
class Given {
 public:
  /// names: of the parameters, in their order. Throws for an argument that is too many, unknown or there twice.
  /// The arguments outlive it.
  Given(Machine& m, std::string_view function, const Arguments& arguments, std::vector<std::string_view> names);
  Given(Machine& m, std::string_view function, Arguments&& arguments, std::vector<std::string_view> names) = delete;
  /// Null where it is not given.
  const Value* find(std::size_t parameter) const { return values_[parameter]; }
  const Value& at(std::size_t parameter) const;
  const std::string& text(std::size_t parameter) const;
  const std::string* text_or_none(std::size_t parameter) const;
  std::int64_t integer(std::size_t parameter, std::int64_t otherwise) const;
  bool flag(std::size_t parameter, bool otherwise) const;
  /// Throws "FUNCTION: MESSAGE".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  [[noreturn]] void wrong(std::size_t parameter, const char* expected) const;
  Machine& m_;
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

/// A filter, or a method of a value.
struct Function {
  std::string_view name;
  std::array<std::string_view, 4> parameters;  ///< their names, in order; "": no more
  Value (*apply)(Machine& m, const Value& subject, const Given& given);
  std::string_view in_messages = name;
  Value (*reads)(Machine& m, const Value& subject, const Arguments& arguments) = nullptr;  ///< any arguments itself

  Value operator()(Machine& m, const Value& subject, const Arguments& arguments) const;
};
/// Null if it is not known.
const Function* find_filter(std::string_view name);

struct Test {
  std::string_view name;
  std::size_t arguments;  ///< so many
  bool (*apply)(Machine& m, const Value& value, const std::vector<Value>& arguments);
};
const Test* find_test(std::string_view name);

/// Jinja's value.name and value[key]: Undefined where there is none.
Value attribute_of(Machine& m, const Value& value, const std::string& name);
Value item_of(Machine& m, const Value& value, const Value& key);
/// Python's value[start:stop:step]; None where a part is left out.
Value slice_of(Machine& m, const Value& value, const Value& start, const Value& stop, const Value& step);
/// a + b and so on.
Value arithmetic_of(Machine& m, const std::string& symbol, const Value& a, const Value& b);
/// json.dumps() with transformers' settings. given: ensure_ascii, indent, separators, sort_keys.
Value to_json(Machine& m, const Value& value, const Given& given);

}  // namespace fp8::text::jinja
