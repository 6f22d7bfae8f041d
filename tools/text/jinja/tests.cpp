// SPDX-License-Identifier: Apache-2.0
// See filters.h.
#include <algorithm>

#include "fp8/tools/text/jinja/filters.h"
#include "fp8/tools/text/jinja/machine.h"

namespace fp8::text::jinja {
namespace {

using Values = std::vector<Value>;

std::int64_t whole(Machine& m, const Value& v) {
  std::int64_t value = 0;
  if (!as_integer(v, value)) m.fail("expected an integer to test, found " + type_of(v));
  return value;
}

bool odd(Machine& m, const Value& v, const Values&) { return whole(m, v) % 2 != 0; }
bool even(Machine& m, const Value& v, const Values&) { return whole(m, v) % 2 == 0; }
bool divisible_by(Machine& m, const Value& v, const Values& a) {
  const auto by = whole(m, a[0]);
  if (by == 0) m.fail("divisibleby: found 0");
  return by == -1 || whole(m, v) % by == 0;
}
bool defined(Machine&, const Value& v, const Values&) { return !v.undefined(); }
bool undefined(Machine&, const Value& v, const Values&) { return v.undefined(); }
bool none(Machine&, const Value& v, const Values&) { return v.none(); }
bool boolean(Machine&, const Value& v, const Values&) { return v.get<bool>() != nullptr; }
bool is_true(Machine&, const Value& v, const Values&) { return v.get<bool>() && *v.get<bool>(); }
bool is_false(Machine&, const Value& v, const Values&) { return v.get<bool>() && !*v.get<bool>(); }
bool is_integer(Machine&, const Value& v, const Values&) { return v.get<std::int64_t>() != nullptr; }
bool is_float(Machine&, const Value& v, const Values&) { return v.get<double>() != nullptr; }
bool number(Machine&, const Value& v, const Values&) {
  double value = 0;
  return as_number(v, value);
}
bool is_string(Machine&, const Value& v, const Values&) { return v.text() != nullptr; }
bool mapping(Machine&, const Value& v, const Values&) { return v.dict() != nullptr; }
bool sequence(Machine& m, const Value& v, const Values&) {
  if (v.list() && v.list()->form == List::Form::view)
    m.fail("whether a view is a sequence is not supported, add |list");
  return v.undefined() || v.text() || v.dict() || (v.list() && v.list()->form <= List::Form::tuple);
}
bool iterable(Machine&, const Value& v, const Values&) { return v.undefined() || v.text() || v.dict() || v.list(); }
bool is_callable(Machine&, const Value& v, const Values&) {
  return v.undefined() || v.get<std::shared_ptr<const Callable>>() != nullptr;  // Undefined has a __call__, which fails
}
bool same_as(Machine& m, const Value& v, const Values& a) {
  const auto single = [](const Value& one) { return one.none() || one.get<bool>(); };
  if (!single(v) && !single(a[0])) m.fail("sameas: supported for true, false and none, found " + type_of(v));
  return v.data.index() == a[0].data.index() && equal(m, v, a[0]);
}
bool in(Machine& m, const Value& v, const Values& a) { return contains(m, a[0], v); }
bool eq(Machine& m, const Value& v, const Values& a) { return equal(m, v, a[0]); }
bool ne(Machine& m, const Value& v, const Values& a) { return !equal(m, v, a[0]); }
bool lt(Machine& m, const Value& v, const Values& a) { return less(m, v, a[0]); }
bool gt(Machine& m, const Value& v, const Values& a) { return less(m, a[0], v); }
bool unordered(const Value& v, const Value& w) {
  double x = 0, y = 0;
  return as_number(v, x) && as_number(w, y) && (x != x || y != y);
}
bool le(Machine& m, const Value& v, const Values& a) { return !unordered(v, a[0]) && !less(m, a[0], v); }
bool ge(Machine& m, const Value& v, const Values& a) { return !unordered(v, a[0]) && !less(m, v, a[0]); }

constexpr Test kTests[] = {{"!=", 1, ne},
                           {"<", 1, lt},
                           {"<=", 1, le},
                           {"==", 1, eq},
                           {">", 1, gt},
                           {">=", 1, ge},
                           {"boolean", 0, boolean},
                           {"callable", 0, is_callable},
                           {"defined", 0, defined},
                           {"divisibleby", 1, divisible_by},
                           {"eq", 1, eq},
                           {"equalto", 1, eq},
                           {"even", 0, even},
                           {"false", 0, is_false},
                           {"float", 0, is_float},
                           {"ge", 1, ge},
                           {"greaterthan", 1, gt},
                           {"gt", 1, gt},
                           {"in", 1, in},
                           {"integer", 0, is_integer},
                           {"iterable", 0, iterable},
                           {"le", 1, le},
                           {"lessthan", 1, lt},
                           {"lt", 1, lt},
                           {"mapping", 0, mapping},
                           {"ne", 1, ne},
                           {"none", 0, none},
                           {"number", 0, number},
                           {"odd", 0, odd},
                           {"sameas", 1, same_as},
                           {"sequence", 0, sequence},
                           {"string", 0, is_string},
                           {"true", 0, is_true},
                           {"undefined", 0, undefined}};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto* const found = std::ranges::find(kTests, name, &Test::name);
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace fp8::text::jinja
