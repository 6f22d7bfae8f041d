// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/jinja/renderer.h"

namespace fp8::text::jinja {

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), body_(std::make_unique<Body>(Body{parse(source, name_)})) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

std::string Template::render(const io::Json& variables, const Limits& limits) const {
  Machine machine(name_, limits);
  return Renderer(machine, variables).run(body_->statements);
}

Renderer::Renderer(Machine& machine, const io::Json& variables) : m_(machine), scope_(std::make_shared<Scope>()) {
  add_globals(*scope_);
  for (const auto& [name, value] : variables.items()) scope_->set(name, value_of(m_, value));
  scope_ = inner_scope();
}

std::string Renderer::run(const Statements& statements) {
  Output out;
  out_ = &out;
  execute(statements);
  return std::move(out.text);
}

std::shared_ptr<Scope> Renderer::inner_scope() const {
  auto scope = std::make_shared<Scope>();
  scope->outer = scope_;
  return scope;
}

void Renderer::write(std::string_view text) {
  m_.spend();
  m_.allow(out_->text.size() + text.size());
  out_->charge.add(text.size());
  out_->text += text;
}

void Renderer::print(const Value& value) {
  if (value.text()) return write(*value.text());
  write(text_of(m_, value));
}

template <class Work>
auto Renderer::within(std::shared_ptr<Scope> scope, const Work& work) {
  scope_.swap(scope);
  auto result = work();
  scope_.swap(scope);
  return result;
}

std::string Renderer::captured(const Statements& statements, std::shared_ptr<Scope> scope) {
  Output inner;
  auto* const out = std::exchange(out_, &inner);
  within(std::move(scope), [&] { return execute(statements); });
  out_ = out;
  return std::move(inner.text);
}

Renderer::Flow Renderer::execute(const Statements& statements) {
  const Level level(m_);
  for (const auto& one : statements)
    if (const Flow flow = execute(one); flow != Flow::on) return flow;
  return Flow::on;
}

Renderer::Flow Renderer::execute(const Statement& s) {
  m_.line = s.line;
  m_.spend();
  switch (s.kind) {
    case Statement::Kind::data: write(s.text); break;
    case Statement::Kind::print: print(evaluate(*s.expressions[0])); break;
    case Statement::Kind::branch: return branch(s);
    case Statement::Kind::loop: return loop(s);
    case Statement::Kind::set: assign(s.targets[0], evaluate(*s.expressions[0])); break;
    case Statement::Kind::set_block: {
      Value text = captured(s.bodies[0], inner_scope());
      assign(s.targets[0], s.expressions[0] ? filtered(*s.expressions[0], text) : text);
      break;
    }
    case Statement::Kind::with: {
      const auto values = values_of(s.expressions);
      auto scope = inner_scope();
      for (std::size_t i = 0; i < values.size(); ++i) scope->set(s.targets[i].names[0], values[i]);
      return within(scope, [&] { return execute(s.bodies[0]); });
    }
    case Statement::Kind::macro:
      assign(s.targets[0], macro_of(s.targets[0].names[0], s.parameters, s.bodies[0]));
      break;
    case Statement::Kind::call: {
      const Value caller = macro_of("caller", s.parameters, s.bodies[0]);
      print(called(*s.expressions[0], &caller));
      break;
    }
    case Statement::Kind::filter: print(filtered(*s.expressions[0], captured(s.bodies[0], inner_scope()))); break;
    case Statement::Kind::generation: write(captured(s.bodies[0], inner_scope())); break;
    case Statement::Kind::leave: return Flow::leave;
    case Statement::Kind::next: return Flow::next;
  }
  return Flow::on;
}

Renderer::Flow Renderer::branch(const Statement& s) {
  for (std::size_t i = 0; i < s.expressions.size(); ++i)
    if (truth(evaluate(*s.expressions[i]))) return execute(s.bodies[i]);
  return s.bodies.size() > s.expressions.size() ? execute(s.bodies.back()) : Flow::on;
}

/// guarded: the condition depends on a namespace, so that a loop that changes one would change the condition.
std::vector<Value> Renderer::turns_of(const Statement& s, bool& guarded) {
  std::vector<Value> values = items_of(m_, evaluate(*s.expressions[0]));
  if (!s.expressions[1]) return values;
  const Charge held(2 * values.size() * sizeof(Value));
  const auto reads = m_.namespace_reads;
  std::vector<Value> kept;
  for (const auto& value : values) {
    const bool keep = within(inner_scope(), [&] {
      assign(s.targets[0], value);
      return truth(evaluate(*s.expressions[1]));
    });
    if (keep) kept.push_back(value);
  }
  guarded = m_.namespace_reads != reads;
  return kept;
}

Renderer::Flow Renderer::loop(const Statement& s) {
  bool guarded = false;
  auto list = std::make_shared<List>();
  list->items = turns_of(s, guarded);
  list->charge.add(list->items.capacity() * sizeof(Value));
  if (list->items.empty())
    return s.bodies.size() < 2 ? Flow::on : within(inner_scope(), [&] { return execute(s.bodies[1]); });
  m_.guarded_loops += guarded ? 1 : 0;
  auto state = std::make_shared<Loop>();
  state->items = list;
  state->last_values = std::make_shared<std::vector<Value>>();
  for (; state->index < list->items.size(); ++state->index) {
    m_.spend();
    auto scope = inner_scope();
    scope->set("loop", state);
    const Flow flow = within(scope, [&] {
      assign(s.targets[0], list->items[state->index]);
      return execute(s.bodies[0]);
    });
    if (flow == Flow::leave) break;
  }
  m_.guarded_loops -= guarded ? 1 : 0;
  return Flow::on;
}

void Renderer::assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    const Value space = value_of_name(target.names[0]);
    const auto* const names = space.get<std::shared_ptr<Namespace>>();
    if (!names) m_.fail("'" + target.names[0] + "' is no namespace, whose attributes alone can be set");
    if (m_.guarded_loops > 0) m_.fail("a namespace changes in a loop whose condition reads one");
    if (value.stays_alone())
      m_.fail("a namespace's attribute is set to a " + type_of(value) + ", which is not supported");
    return (*names)->set(target.attribute, value);
  }
  if (!target.several) return scope_->set(target.names[0], value);
  const auto items = items_of(m_, value);
  if (items.size() != target.names.size())
    m_.fail(io::message("expected {} values to assign, found {}", target.names.size(), items.size()));
  for (std::size_t i = 0; i < items.size(); ++i) scope_->set(target.names[i], items[i]);
}

Value Renderer::macro_of(const std::string& name, const Parameters& parameters, const Statements& body) {
  auto macro = std::make_shared<Callable>();
  macro->name = name;
  // Weak: a scope has its macros.
  macro->call = [this, name, &parameters, &body, made_in = std::weak_ptr<Scope>(scope_)](Machine& m,
                                                                                         Arguments& given) -> Value {
    auto outer = made_in.lock();
    if (!outer) m.fail("the macro '" + name + "' is called outside of where it was made");
    auto scope = std::make_shared<Scope>();
    scope->outer = std::move(outer);
    bind(*scope, name, parameters, given);
    for (std::size_t i = 0; i < parameters.defaults.size(); ++i) {
      const std::size_t at = parameters.names.size() - parameters.defaults.size() + i;
      if (scope->find(parameters.names[at])) continue;
      scope->set(parameters.names[at], within(scope, [&] { return evaluate(*parameters.defaults[i]); }));
    }
    for (const auto& one : parameters.names)
      if (!scope->find(one))
        scope->set(one, Undefined("parameter '" + one + "' of '" + name + "', which is not given,"));
    return captured(body, scope);
  };
  return std::shared_ptr<const Callable>(std::move(macro));
}

void Renderer::bind(Scope& scope, const std::string& name, const Parameters& p, Arguments& given) {
  const std::size_t known = std::min(p.names.size(), given.positional.size());
  for (std::size_t i = 0; i < known; ++i) scope.set(p.names[i], given.positional[i]);
  std::vector<Value> more(given.positional.begin() + static_cast<std::ptrdiff_t>(known), given.positional.end());
  std::vector<std::pair<std::string, Value>> others;
  Value caller = Undefined("caller, which is not given,");
  for (auto& [key, value] : given.named) {
    m_.spend(p.names.size());
    const auto place = std::ranges::find(p.names, key);
    if (place != p.names.end() && !scope.find(key))
      scope.set(key, std::move(value));
    else if (key == "caller" && p.caller)
      caller = std::move(value);
    else
      others.emplace_back(key, std::move(value));
  }
  if (!more.empty() && !p.varargs)
    m_.fail(io::message("the macro '{}' is given {} arguments, allowed: {}", name, given.positional.size(),
                        p.names.size()));
  if (!others.empty() && !p.kwargs) m_.fail("the macro '" + name + "' takes no argument '" + others[0].first + "'");
  if (p.varargs) scope.set("varargs", make_list(m_, std::move(more), List::Form::tuple));
  if (p.kwargs) scope.set("kwargs", make_dict(m_, std::move(others)));
  if (p.caller) scope.set("caller", std::move(caller));
}

}  // namespace fp8::text::jinja
