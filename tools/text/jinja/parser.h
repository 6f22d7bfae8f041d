// SPDX-License-Identifier: Apache-2.0
// The grammar of Jinja, by the order of its own parser, so that what is read one way there is read the same way here.
//
// The tree that it makes: statements, and expressions as trees of bounded height.
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

/// The names that set, for and with assign to.
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

// The source of a template as tokens, with what trim_blocks, lstrip_blocks and the signs - and + take away already
// gone.

struct Token {
  enum class Kind : std::uint8_t {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text;  ///< of data and strings what they stand for; of the others as written
  int line = 1;
  std::int64_t integer = 0;
  double real = 0;

  bool is_symbol(std::string_view what) const { return kind == Kind::symbol && text == what; }
  bool is_name(std::string_view what) const { return kind == Kind::name && text == what; }
};

/// The last is Kind::end. name: of the file, in messages. Throws io::Error "NAME:LINE: ...".
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

/// Expressions: parse_expressions.cpp. Statements are StatementParser's.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string name) : tokens_(std::move(tokens)), name_(std::move(name)) {}

 protected:
  [[noreturn]] void fail(const std::string& message) const { fail_in(current().line, message); }
  [[noreturn]] void fail_in(int line, const std::string& message) const;
  [[noreturn]] void unexpected(std::string_view expected) const;
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void advance() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  std::string expect_name();

  /// With or without "x if y else z".
  NodePtr expression(bool conditional = true);
  /// "a, b" is a tuple. ends: a name that ends it.
  NodePtr tuple(bool conditional = true, bool in_parentheses = false, std::string_view ends = "");
  /// |filter and is test and (arguments), as they follow `node`.
  NodePtr filters(NodePtr node, bool inline_first = false);
  NodePtr make(Node::Kind kind, int line, std::vector<NodePtr> kids = {}, std::string text = "") const;

 private:
  /// Parses operands by next(), joined by a word or by symbols of one rank, from left to right.
  template <class Next>
  NodePtr joined_by(std::string_view word, Node::Kind kind, const Next& next);
  template <class Next>
  NodePtr arithmetic(std::initializer_list<std::string_view> symbols, const Next& next);
  NodePtr either();
  NodePtr both();
  NodePtr negation();
  NodePtr comparison();
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr unary(bool with_filters = true);
  NodePtr primary();
  NodePtr string_constant();
  NodePtr in_brackets(bool dict);
  NodePtr postfix(NodePtr node);
  NodePtr subscript(NodePtr node);
  NodePtr filter_expressions(NodePtr node);
  NodePtr test(NodePtr node);
  void arguments(Node& node);
  bool tuple_ends(std::string_view ends) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string name_;
};

}  // namespace fp8::text::jinja
