// SPDX-License-Identifier: Apache-2.0
// Arithmetic, slices and the functions that every template has. See filters.h and renderer.h.

#include "fp8/tools/text/jinja/renderer.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text::jinja {
namespace {

constexpr std::int64_t kMostRange = 100'000;  // as Jinja's sandbox has it

Value whole_arithmetic(Machine& m, char symbol, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool too_large = symbol == '+'   ? __builtin_add_overflow(a, b, &result)
                         : symbol == '-' ? __builtin_sub_overflow(a, b, &result)
                                         : __builtin_mul_overflow(a, b, &result);
  if (too_large) m.fail("a number is too large");
  return result;
}

/// a // b and a % b, rounded down.
Value whole_division(Machine& m, bool quotient, std::int64_t a, std::int64_t b) {
  if (b == 0) m.fail("division by zero");
  if (b == -1) return quotient ? whole_arithmetic(m, '-', 0, a) : Value(std::int64_t{0});
  const bool down = a % b != 0 && (a % b < 0) != (b < 0);
  return quotient ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
}

Value real_arithmetic(Machine& m, const std::string& symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (b == 0) m.fail("division by zero");
  if (symbol == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (b < 0) != (rest < 0)) rest += b;
  if (symbol == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = (a - rest) / b;
  const double down = std::floor(quotient);
  return quotient == 0 ? std::copysign(0.0, a / b) : down + (quotient - down > 0.5 ? 1.0 : 0.0);
}

Value power(Machine& m, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0 || exponent > 63) m.fail("a power with an exponent beyond 0 to 63 is not supported");
  Value result = std::int64_t{1};
  for (; exponent > 0; --exponent) result = whole_arithmetic(m, '*', *result.get<std::int64_t>(), base);
  return result;
}

Value repeated(Machine& m, const Value& what, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const std::size_t size = what.text() ? what.text()->size() : what.list()->items.size();
  if (size > 0) m.allow(times);
  m.allow(times * size * (what.text() ? 1 : sizeof(Value)));
  m.spend_bytes(times * size);
  if (const auto* const text = what.text()) {
    std::string out;
    for (std::size_t i = 0; i < times && size > 0; ++i) out += *text;
    return out;
  }
  std::vector<Value> out;
  for (std::size_t i = 0; i < times && size > 0; ++i)
    out.insert(out.end(), what.list()->items.begin(), what.list()->items.end());
  return make_list(m, std::move(out), what.list()->form);
}

bool plain(const Value& v) { return v.list() && v.list()->form <= List::Form::tuple; }

/// Of texts and lists; undefined where the operator has no meaning for them.
Value joined(Machine& m, const std::string& symbol, const Value& a, const Value& b) {
  std::int64_t count = 0;
  if (symbol == "+" && a.text() && b.text()) {
    m.allow(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (symbol == "+" && plain(a) && plain(b) && a.list()->form == b.list()->form) {
    m.allow((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
    auto items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(m, std::move(items), a.list()->form);
  }
  if (symbol == "*" && (a.text() || plain(a)) && as_integer(b, count)) return repeated(m, a, count);
  if (symbol == "*" && (b.text() || plain(b)) && as_integer(a, count)) return repeated(m, b, count);
  return Undefined{};
}

/// The characters first, first + by ... before `end`, in one walk.
Value text_slice(Machine& m, std::string_view text, std::int64_t first, std::int64_t end, std::int64_t by) {
  m.spend_bytes(2 * text.size());
  std::string part;
  std::size_t at = 0;  // of character i
  for (std::int64_t i = 0, next = first; by > 0 ? next < end : next > end;) {
    for (; i < next; ++i) at += sequence_size(static_cast<unsigned char>(text[at]));
    for (; i > next; --i) at -= decode_before(text, at).size;
    part += text.substr(at, sequence_size(static_cast<unsigned char>(text[at])));
    if (__builtin_add_overflow(next, by, &next)) break;
  }
  return part;
}

/// Returns the begin or end of a slice of `size` items; both may be -1 with a negative step.
std::int64_t slice_end(Machine& m, const Value& v, std::int64_t size, bool backward, bool first) {
  if (v.none()) return first == backward ? (backward ? size - 1 : size) : (backward ? -1 : 0);
  std::int64_t at = 0;
  if (!as_integer(v, at)) m.fail("expected an integer in a slice, found " + type_of(v));
  if (at < 0) at = std::max<std::int64_t>(at < -size ? -size - 1 : at, -size - 1) + size;
  return std::clamp<std::int64_t>(at, backward ? -1 : 0, backward ? size - 1 : size);
}

Value range(Machine& m, Arguments& a) {
  const Given given(m, "range", a, {"start", "stop", "step"});
  const bool one = !given.find(1);
  given.at(0);
  const std::int64_t start = one ? 0 : given.integer(0, 0), stop = given.integer(one ? 0 : 1, 0),
                     step = given.integer(2, 1);
  if (step == 0) m.fail("range: the step is 0");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMostRange) m.fail("range: more than 100000 numbers");
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(m, std::move(items), List::Form::view);
}

Value dict(Machine& m, Arguments& a) {
  std::vector<std::pair<std::string, Value>> items;
  if (a.positional.size() > 1 || (a.positional.size() == 1 && !a.positional[0].dict()))
    m.fail("dict: expected named arguments or a mapping");
  if (!a.positional.empty()) items = a.positional[0].dict()->items;
  for (auto& item : a.named) items.push_back(std::move(item));
  return make_dict(m, std::move(items));
}

Value make_namespace(Machine& m, Arguments& a) {
  const Value all = dict(m, a);
  auto space = std::make_shared<Namespace>();
  for (const auto& [name, value] : all.dict()->items) {
    if (name.starts_with('_')) m.fail("a namespace's attribute can't begin with '_'");
    m.spend_search(name.size(), all.dict()->items.size());
    space->set(name, value);
  }
  return space;
}

Value raise_exception(Machine& m, Arguments& a) {
  const Given given(m, "raise_exception", a, {"message"});
  m.fail("the template refuses: " + text_of(m, given.at(0)));
}

/// The time is the same on every day, so that a text is: when Llama 3.1's template says it was made where it knows no
/// time.
Value strftime_now(Machine& m, Arguments& a) {
  const Given given(m, "strftime_now", a, {"format"});
  std::tm time = {};
  time.tm_year = 2024 - 1900, time.tm_mon = 7 - 1, time.tm_mday = 26;
  time.tm_isdst = -1;
  std::tm whole = time;
  const std::time_t seconds = ::timegm(&whole);
  ::gmtime_r(&seconds, &time);
  std::string text;
  const std::string& format = given.text(0);
  m.spend(format.size());
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : '\0';
    if (std::string_view("aAbBdHIjmMpSyY%").find(kind) == std::string_view::npos || kind == '\0')
      m.fail("strftime_now: the format " + io::in_quotes(format) + " is not supported");
    const char one[] = {'%', kind, '\0'};
    char buffer[64];
    text.append(buffer, std::strftime(buffer, sizeof buffer, one, &time));
  }
  return text;
}

Value function(std::string name, std::function<Value(Machine&, Arguments&)> call) {
  return std::make_shared<const Callable>(Callable{std::move(name), std::move(call)});
}

}  // namespace

Value arithmetic_of(Machine& m, const std::string& symbol, const Value& a, const Value& b) {
  for (const Value* const one : {&a, &b})
    if (const auto* const missing = one->get<Undefined>())
      m.fail(missing->what() + " is undefined and is used with " + symbol);
  std::int64_t i = 0, j = 0;
  double x = 0, y = 0;
  const bool whole = as_integer(a, i) && as_integer(b, j);
  if (whole && (symbol == "+" || symbol == "-" || symbol == "*")) return whole_arithmetic(m, symbol[0], i, j);
  if (whole && (symbol == "//" || symbol == "%")) return whole_division(m, symbol == "//", i, j);
  if (whole && symbol == "**") return power(m, i, j);
  if (as_number(a, x) && as_number(b, y) && symbol != "**") {
    if (whole && (std::abs(x) > 9e15 || std::abs(y) > 9e15)) m.fail("a number is too large");
    return real_arithmetic(m, symbol, x, y);
  }
  Value result = joined(m, symbol, a, b);
  if (result.undefined()) m.fail("'" + symbol + "' between " + type_of(a) + " and " + type_of(b) + " is not supported");
  return result;
}

Value slice_of(Machine& m, const Value& value, const Value& start, const Value& stop, const Value& step) {
  std::int64_t by = 1;
  if (!step.none() && !as_integer(step, by)) m.fail("expected an integer in a slice, found " + type_of(step));
  if (by == 0) m.fail("the step of a slice is 0");
  if (!value.text() && !plain(value)) m.fail("a " + type_of(value) + " can't be sliced");
  const auto size = length_of(m, value);
  const std::int64_t first = slice_end(m, start, size, by < 0, true), end = slice_end(m, stop, size, by < 0, false);
  if (value.text()) return text_slice(m, *value.text(), first, end, by);
  std::vector<Value> part;
  for (std::int64_t i = first; by > 0 ? i < end : i > end;) {
    m.spend();
    part.push_back(value.list()->items[static_cast<std::size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return make_list(m, std::move(part), value.list()->form);
}

void add_globals(Names& names) {
  names.set("range", function("range", range));
  names.set("dict", function("dict", dict));
  names.set("namespace", function("namespace", make_namespace));
  names.set("raise_exception", function("raise_exception", raise_exception));
  names.set("strftime_now", function("strftime_now", strftime_now));
}

}  // namespace fp8::text::jinja
