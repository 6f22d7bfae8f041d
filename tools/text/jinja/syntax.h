// SPDX-License-Identifier: Apache-2.0
// A template as it was parsed: statements, and expressions as trees of bounded height.
#pragma once

#include "fp8/tools/text/jinja/filters.h"

namespace fp8::text::jinja {

struct Node;
using NodePtr = std::unique_ptr<Node>;

/// An expression.
struct Node {
  enum class Kind : std::uint8_t {
    constant,   // value
    name,       // text
    list,       // kids
    tuple,      // kids
    dict,       // kids: key, value, key, value
    attribute,  // kids[0].text
    item,       // kids[0][kids[1]]
    slice,      // kids[0][kids[1]:kids[2]:kids[3]], each of the three may be null
    call,       // kids[0](kids[1..], named)
    filter,     // kids[0]|text(kids[1..], named); kids[0] is null where a block is filtered
    test,       // kids[0] is text(kids[1..])
    negative,   // -kids[0]
    positive,
    negated,    // not kids[0]
    both,       // kids[0] and kids[1]
    either,     // or
    choice,     // kids[1] if kids[0] else kids[2], which may be null
    compare,    // kids[0] operators[0] kids[1] operators[1] kids[2] ...
    concat,     // kids joined by ~
    arithmetic  // kids[0] text kids[1]
  };
  Kind kind = Kind::constant;
  int line = 1;
  int height = 1;
  std::string text;
  Value value;
  std::vector<NodePtr> kids;
  std::vector<std::pair<std::string, NodePtr>> named;
  std::vector<std::string> operators;
  const Function* filter = nullptr;
  const Test* test = nullptr;
};

/// What set, for and with assign to.
struct Target {
  std::vector<std::string> names;
  bool several = false;   ///< names are given the items of a list
  std::string attribute;  ///< of the namespace names[0], if not empty
};

struct Statement;
using Statements = std::vector<Statement>;

/// A macro's or call's parameters, the last ones with defaults.
struct Parameters {
  std::vector<std::string> names;
  std::vector<NodePtr> defaults;
  bool varargs = false, kwargs = false, caller = false;  ///< the body asks for them
};

struct Statement {
  enum class Kind : std::uint8_t {
    data,        // text
    print,       // expressions[0]
    branch,      // if expressions[i]: bodies[i]; one more body is else's
    loop,        // for target in expressions[0] if expressions[1] (may be null): bodies[0], else: bodies[1]
    set,         // target = expressions[0]
    set_block,   // target = bodies[0] through expressions[0], filters, if not null
    with,        // targets[i] = expressions[i]: bodies[0]
    macro,       // target.names[0](parameters): bodies[0]
    call,        // expressions[0], a call, is given the caller (parameters): bodies[0]
    filter,      // bodies[0] through expressions[0]
    generation,  // bodies[0]
    leave,       // break
    next         // continue
  };
  Kind kind = Kind::data;
  int line = 1;
  std::string text;
  std::vector<Target> targets;
  std::vector<NodePtr> expressions;
  std::vector<Statements> bodies;
  Parameters parameters;
};

/// The body of a template.
struct Body {
  Statements statements;
};

/// Throws io::Error "NAME:LINE: ..." for what Jinja would refuse and for what is not known here.
Statements parse(std::string_view source, const std::string& name);

}  // namespace fp8::text::jinja
