// SPDX-License-Identifier: Apache-2.0
// Runs a template: statements in renderer.cpp, expressions in evaluate.cpp.
//
// Names are looked for from the innermost scope outwards. A loop's turn, a macro's call and the bodies of with, call,
// filter, generation and a set block have a scope of their own, in which set binds; that of if has none. A macro sees
// the scope that it was made in as it is when it is called.
#pragma once

#include "fp8/tools/text/jinja/parser.h"

namespace fp8::text::jinja {

struct Scope : Names {
  std::shared_ptr<Scope> outer;
};

/// The text that is being written; it counts as held.
struct Output {
  std::string text;
  Charge charge;
};

class Renderer {
 public:
  Renderer(Machine& machine, const io::Json& variables);
  std::string run(const Statements& statements);

 private:
  enum class Flow : std::uint8_t { on, leave, next };

  Flow execute(const Statements& statements);
  Flow execute(const Statement& s);
  Flow branch(const Statement& s);
  Flow loop(const Statement& s);
  std::vector<Value> turns_of(const Statement& s, bool& guarded);
  void write(std::string_view text);
  void print(const Value& value);
  /// The text that the statements write in `scope`.
  std::string captured(const Statements& statements, std::shared_ptr<Scope> scope);
  std::shared_ptr<Scope> inner_scope() const;
  /// Returns work(), which runs in `scope`.
  template <class Work>
  auto within(std::shared_ptr<Scope> scope, const Work& work);
  void assign(const Target& target, const Value& value);
  Value macro_of(const std::string& name, const Parameters& parameters, const Statements& body);
  void bind(Scope& scope, const std::string& name, const Parameters& parameters, Arguments& given);

  Value evaluate(const Node& node);
  Value computed(const Node& node);
  Value value_of_name(const std::string& name) const;
  Value compared(const Node& node);
  Value called(const Node& node, const Value* caller = nullptr);
  Value filtered(const Node& node, const Value& subject);
  Value applied(const Node& node, const Value& value);
  void refuse_markup(const Value& value, const char* what) const;
  Value tested(const Node& node);
  Value made_dict(const Node& node);
  Arguments arguments_of(const Node& node, std::size_t first);
  std::vector<Value> values_of(const std::vector<NodePtr>& nodes, std::size_t first = 0);

  Machine& m_;
  std::shared_ptr<Scope> scope_;
  Output* out_ = nullptr;
};

/// range, dict, namespace, raise_exception, strftime_now.
void add_globals(Names& names);

}  // namespace fp8::text::jinja
