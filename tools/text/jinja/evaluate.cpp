// SPDX-License-Identifier: Apache-2.0
// The tests of templates, see filters.h, and the values of expressions, see renderer.h.

#include "fp8/tools/text/jinja/renderer.h"

namespace fp8::text::jinja {
namespace {

using Values = std::vector<Value>;

std::int64_t whole(Machine& m, const Value& v) {
  std::int64_t value = 0;
  if (!as_integer(v, value)) m.fail("expected an integer to test, found " + type_of(v));
  return value;
}

bool divisible_by(Machine& m, const Value& v, const Values& a) {
  const auto by = whole(m, a[0]);
  if (by == 0) m.fail("divisibleby: found 0");
  return by == -1 || whole(m, v) % by == 0;
}
bool sequence(Machine& m, const Value& v, const Values&) {
  if (v.list() && v.list()->form == List::Form::view)
    m.fail("whether a view is a sequence is not supported, add |list");
  return v.undefined() || v.text() || v.dict() || (v.list() && v.list()->form <= List::Form::tuple);
}
bool same_as(Machine& m, const Value& v, const Values& a) {
  const auto single = [](const Value& one) { return one.none() || one.get<bool>(); };
  if (!single(v) && !single(a[0])) m.fail("sameas: supported for true, false and none, found " + type_of(v));
  return v.data.index() == a[0].data.index() && equal(m, v, a[0]);
}
bool unordered(const Value& v, const Value& w) {
  double x = 0, y = 0;
  return as_number(v, x) && as_number(w, y) && (x != x || y != y);
}
bool eq(Machine& m, const Value& v, const Values& a) { return equal(m, v, a[0]); }
bool ne(Machine& m, const Value& v, const Values& a) { return !equal(m, v, a[0]); }
bool lt(Machine& m, const Value& v, const Values& a) { return less(m, v, a[0]); }
bool gt(Machine& m, const Value& v, const Values& a) { return less(m, a[0], v); }
bool le(Machine& m, const Value& v, const Values& a) { return !unordered(v, a[0]) && !less(m, a[0], v); }
bool ge(Machine& m, const Value& v, const Values& a) { return !unordered(v, a[0]) && !less(m, v, a[0]); }

/// Undefined has a __call__, which fails.
bool is_callable(Machine&, const Value& v, const Values&) {
  return v.undefined() || v.get<std::shared_ptr<const Callable>>() != nullptr;
}

template <bool kValue>
bool is_bool(Machine&, const Value& v, const Values&) {
  return v.get<bool>() && *v.get<bool>() == kValue;
}

constexpr Test kTests[] = {
    {"!=", 1, ne},
    {"<", 1, lt},
    {"<=", 1, le},
    {"==", 1, eq},
    {">", 1, gt},
    {">=", 1, ge},
    {"boolean", 0, [](auto&, auto& v, auto&) { return v.template get<bool>() != nullptr; }},
    {"callable", 0, is_callable},
    {"defined", 0, [](auto&, auto& v, auto&) { return !v.undefined(); }},
    {"divisibleby", 1, divisible_by},
    {"eq", 1, eq},
    {"equalto", 1, eq},
    {"even", 0, [](auto& m, auto& v, auto&) { return whole(m, v) % 2 == 0; }},
    {"false", 0, is_bool<false>},
    {"float", 0, [](auto&, auto& v, auto&) { return v.template get<double>() != nullptr; }},
    {"ge", 1, ge},
    {"greaterthan", 1, gt},
    {"gt", 1, gt},
    {"in", 1, [](auto& m, auto& v, auto& a) { return contains(m, a[0], v); }},
    {"integer", 0, [](auto&, auto& v, auto&) { return v.template get<std::int64_t>() != nullptr; }},
    {"iterable", 0, [](auto&, auto& v, auto&) { return v.undefined() || v.text() || v.dict() || v.list(); }},
    {"le", 1, le},
    {"lessthan", 1, lt},
    {"lt", 1, lt},
    {"mapping", 0, [](auto&, auto& v, auto&) { return v.dict() != nullptr; }},
    {"ne", 1, ne},
    {"none", 0, [](auto&, auto& v, auto&) { return v.none(); }},
    {"number", 0,
     [](auto&, auto& v, auto&) {
       double value = 0;
       return as_number(v, value);
     }},
    {"odd", 0, [](auto& m, auto& v, auto&) { return whole(m, v) % 2 != 0; }},
    {"sameas", 1, same_as},
    {"sequence", 0, sequence},
    {"string", 0, [](auto&, auto& v, auto&) { return v.text() != nullptr; }},
    {"true", 0, is_bool<true>},
    {"undefined", 0, [](auto&, auto& v, auto&) { return v.undefined(); }}};

/// Comparisons are tests by the same name.
bool holds(Machine& m, const std::string& symbol, const Value& a, const Value& b) {
  if (symbol == "not in") return !contains(m, b, a);
  return find_test(symbol)->apply(m, a, {b});
}

}  // namespace

const Test* find_test(std::string_view name) {
  const auto* const found = std::ranges::find(kTests, name, &Test::name);
  return found == std::end(kTests) ? nullptr : found;
}

Value Renderer::value_of_name(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope; scope = scope->outer.get()) {
    m_.spend();
    if (const Value* const found = scope->find(name)) return *found;
  }
  return Undefined("'" + name + "'");
}

std::vector<Value> Renderer::values_of(const std::vector<NodePtr>& nodes, std::size_t first) {
  const Charge held((nodes.size() - first) * sizeof(Value));
  std::vector<Value> values;
  for (std::size_t i = first; i < nodes.size(); ++i) values.push_back(evaluate(*nodes[i]));
  return values;
}

Arguments Renderer::arguments_of(const Node& node, std::size_t first) {
  Arguments arguments{values_of(node.kids, first), {}};
  for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value));
  m_.line = node.line;
  return arguments;
}

Value Renderer::compared(const Node& node) {
  Value left = evaluate(*node.kids[0]);
  for (std::size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.kids[i + 1]);
    m_.line = node.line;
    if (!holds(m_, node.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::called(const Node& node, const Value* caller) {
  const Value callee = evaluate(*node.kids[0]);
  Arguments arguments = arguments_of(node, 1);
  if (caller) arguments.named.emplace_back("caller", *caller);
  if (const auto* const missing = callee.get<Undefined>()) m_.fail(missing->what() + " is undefined and is called");
  const auto* const function = callee.get<std::shared_ptr<const Callable>>();
  if (!function) m_.fail("a " + type_of(callee) + " is called");
  const std::shared_ptr<const Callable> held = *function;
  const Charge given(arguments.positional.size() * sizeof(Value));
  return held->call(m_, arguments);
}

void Renderer::refuse_markup(const Value& value, const char* what) const {
  if (value.markup) m_.fail(std::string("a text that went through |safe is ") + what + ", which is not supported");
}

Value Renderer::applied(const Node& node, const Value& value) {
  const bool keeps = node.text == "safe" || node.text == "tojson" || node.text == "length" || node.text == "default";
  if (!keeps) refuse_markup(value, "filtered");
  return (*node.filter)(m_, value, arguments_of(node, 1));
}

Value Renderer::filtered(const Node& node, const Value& subject) {
  // A block's filters begin with the one that has nothing in front.
  const Value value = node.kids[0] ? filtered(*node.kids[0], subject) : subject;
  return applied(node, value);
}

Value Renderer::tested(const Node& node) {
  const Value value = evaluate(*node.kids[0]);
  const auto arguments = values_of(node.kids, 1);
  m_.line = node.line;
  return node.test->apply(m_, value, arguments);
}

Value Renderer::made_dict(const Node& node) {
  std::vector<std::pair<std::string, Value>> items;
  Charge held;
  for (std::size_t i = 0; i < node.kids.size(); i += 2) {
    const Value key = evaluate(*node.kids[i]);
    Value value = evaluate(*node.kids[i + 1]);
    m_.line = node.line;
    if (!key.text()) m_.fail("expected a string as a key, found " + type_of(key));
    held.add(sizeof(items[0]) + key.text()->size());
    items.emplace_back(*key.text(), std::move(value));
  }
  return make_dict(m_, std::move(items));
}

/// The value of a node whose kids are all evaluated, in order.
Value Renderer::computed(const Node& node) {
  const auto kid = [&](std::size_t i) {
    Value value = evaluate(*node.kids[i]);
    m_.line = node.line;
    return value;
  };
  const auto part = [&](std::size_t i) { return node.kids[i] ? kid(i) : Value(None{}); };
  switch (node.kind) {
    case Node::Kind::attribute: {
      const Value subject = kid(0);
      refuse_markup(subject, "asked for an attribute");
      return attribute_of(m_, subject, node.text);
    }
    case Node::Kind::item: {
      const Value subject = kid(0);
      refuse_markup(subject, "indexed");
      return item_of(m_, subject, kid(1));
    }
    case Node::Kind::slice: {
      const Value subject = kid(0), start = part(1), stop = part(2);
      refuse_markup(subject, "sliced");
      return slice_of(m_, subject, start, stop, part(3));
    }
    case Node::Kind::filter: {
      const Value subject = kid(0);
      return applied(node, subject);
    }
    case Node::Kind::negative: {
      const Value value = kid(0);
      if (const auto* const real = value.get<double>()) return -*real;
      return arithmetic_of(m_, "-", Value(std::int64_t{0}), value);
    }
    case Node::Kind::positive: {
      const Value value = kid(0);
      return value.get<double>() ? value : arithmetic_of(m_, "+", Value(std::int64_t{0}), value);
    }
    case Node::Kind::negated: return !truth(kid(0));
    case Node::Kind::concat: {
      const auto values = values_of(node.kids);
      m_.line = node.line;
      std::string text;
      for (const auto& value : values) {
        const std::string other = value.text() ? "" : text_of(m_, value);
        const std::string& next = value.text() ? *value.text() : other;
        m_.allow(text.size() + next.size());
        text += next;
      }
      return text;
    }
    default: {  // arithmetic
      const Value left = kid(0), right = kid(1);
      for (const Value* const one : {&left, &right}) refuse_markup(*one, "added to or repeated");
      return arithmetic_of(m_, node.text, left, right);
    }
  }
}

Value Renderer::evaluate(const Node& node) {
  const Level level(m_);
  m_.line = node.line;
  m_.spend();
  switch (node.kind) {
    case Node::Kind::constant: return node.value;
    case Node::Kind::name: return value_of_name(node.text);
    case Node::Kind::list:
    case Node::Kind::tuple: {
      auto values = values_of(node.kids);
      m_.line = node.line;
      return make_list(m_, std::move(values), node.kind == Node::Kind::list ? List::Form::list : List::Form::tuple);
    }
    case Node::Kind::dict: return made_dict(node);
    case Node::Kind::call: return called(node);
    case Node::Kind::test: return tested(node);
    case Node::Kind::compare: return compared(node);
    case Node::Kind::both:
    case Node::Kind::either: {
      Value left = evaluate(*node.kids[0]);
      return truth(left) == (node.kind == Node::Kind::both) ? evaluate(*node.kids[1]) : left;
    }
    case Node::Kind::choice:
      if (truth(evaluate(*node.kids[0]))) return evaluate(*node.kids[1]);
      return node.kids[2] ? evaluate(*node.kids[2]) : Value(Undefined("an inline if without else"));
    default: return computed(node);
  }
}

}  // namespace fp8::text::jinja
