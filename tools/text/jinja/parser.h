// SPDX-License-Identifier: Apache-2.0
// The grammar of Jinja, by the order of its own parser, so that what is read one way there is read the same way here.
#pragma once
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "fp8/tools/text/jinja/syntax.h"

// The source of a template as tokens, with what trim_blocks, lstrip_blocks and the signs - and + take away already
// gone.

namespace fp8::text::jinja {

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
  /// What next() parses, joined by a word or by symbols of one rank, from left to right.
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
