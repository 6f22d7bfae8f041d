// SPDX-License-Identifier: Apache-2.0
// See parser.h.

#include "fp8/tools/text/jinja/parser.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestExpression = 60, kTallestTree = 200;
constexpr std::size_t kMostArguments = 255;
constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};

std::vector<NodePtr> alone(NodePtr a) {
  std::vector<NodePtr> one;
  one.push_back(std::move(a));
  return one;
}

std::vector<NodePtr> pair_of(NodePtr a, NodePtr b) {
  auto both = alone(std::move(a));
  both.push_back(std::move(b));
  return both;
}

}  // namespace

void ExpressionParser::fail_in(int line, const std::string& message) const {
  io::fail<io::Error>("{}:{}: {}", name_, line, message);
}

void ExpressionParser::unexpected(std::string_view expected) const {
  const auto& token = current();
  const bool text = token.kind == Token::Kind::data || token.kind == Token::Kind::end;
  fail(io::message("expected {}, found {}", expected,
                   token.kind == Token::Kind::end ? token.text
                   : text                         ? "text"
                                                  : io::in_quotes(token.text)));
}

bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) unexpected("'" + std::string(symbol) + "'");
}

std::string ExpressionParser::expect_name() {
  if (current().kind != Token::Kind::name) unexpected("a name");
  std::string name = current().text;
  advance();
  return name;
}

NodePtr ExpressionParser::make(Node::Kind kind, int line, std::vector<NodePtr> kids, std::string text) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  for (const auto& kid : kids)
    if (kid) node->height = std::max(node->height, kid->height + 1);
  if (node->height > kTallestTree) fail("the expression is nested too deeply");
  node->kids = std::move(kids);
  node->text = std::move(text);
  return node;
}

NodePtr ExpressionParser::expression(bool conditional) {
  if (++depth_ > kDeepestExpression) fail("the expression is nested too deeply");
  NodePtr node = either();
  int line = current().line;
  while (conditional && skip_name("if")) {
    auto kids = pair_of(either(), std::move(node));
    kids.push_back(skip_name("else") ? expression() : nullptr);
    node = make(Node::Kind::choice, line, std::move(kids));
    line = current().line;
  }
  --depth_;
  return node;
}

template <class Next>
NodePtr ExpressionParser::joined_by(std::string_view word, Node::Kind kind, const Next& next) {
  NodePtr node = next();
  for (int line = current().line; skip_name(word); line = current().line)
    node = make(kind, line, pair_of(std::move(node), next()));
  return node;
}

template <class Next>
NodePtr ExpressionParser::arithmetic(std::initializer_list<std::string_view> symbols, const Next& next) {
  NodePtr node = next();
  while (std::ranges::any_of(symbols, [&](auto symbol) { return current().is_symbol(symbol); })) {
    const Token token = current();
    advance();
    node = make(Node::Kind::arithmetic, token.line, pair_of(std::move(node), next()), token.text);
  }
  return node;
}

NodePtr ExpressionParser::either() {
  return joined_by("or", Node::Kind::either, [this] { return both(); });
}
NodePtr ExpressionParser::both() {
  return joined_by("and", Node::Kind::both, [this] { return negation(); });
}

NodePtr ExpressionParser::negation() {
  const int line = current().line;
  if (!skip_name("not")) return comparison();
  if (++depth_ > kDeepestExpression) fail("the expression is nested too deeply");
  NodePtr node = make(Node::Kind::negated, line, alone(negation()));
  --depth_;
  return node;
}

NodePtr ExpressionParser::comparison() {
  const int line = current().line;
  std::vector<NodePtr> kids;
  std::vector<std::string> operators;
  kids.push_back(sum());
  while (true) {
    const auto& token = current();
    if (token.kind == Token::Kind::symbol && std::ranges::find(kComparisons, token.text) != std::end(kComparisons)) {
      operators.push_back(token.text);
      advance();
    } else if (skip_name("in")) {
      operators.push_back("in");
    } else if (token.is_name("not") && ahead().is_name("in")) {
      operators.push_back("not in");
      advance();
      advance();
    } else {
      break;
    }
    kids.push_back(sum());
  }
  if (operators.empty()) return std::move(kids[0]);
  NodePtr node = make(Node::Kind::compare, line, std::move(kids));
  node->operators = std::move(operators);
  return node;
}

NodePtr ExpressionParser::sum() {
  return arithmetic({"+", "-"}, [this] { return concatenation(); });
}

NodePtr ExpressionParser::concatenation() {
  const int line = current().line;
  auto kids = alone(product());
  while (skip_symbol("~")) kids.push_back(product());
  return kids.size() == 1 ? std::move(kids[0]) : make(Node::Kind::concat, line, std::move(kids));
}

NodePtr ExpressionParser::product() {
  return arithmetic({"*", "/", "//", "%"}, [this] { return power(); });
}
NodePtr ExpressionParser::power() {
  return arithmetic({"**"}, [this] { return unary(); });
}

NodePtr ExpressionParser::unary(bool with_filters) {
  if (++depth_ > kDeepestExpression) fail("the expression is nested too deeply");
  const int line = current().line;
  NodePtr node;
  if (skip_symbol("-"))
    node = make(Node::Kind::negative, line, alone(unary(false)));
  else if (skip_symbol("+"))
    node = make(Node::Kind::positive, line, alone(unary(false)));
  else
    node = primary();
  node = postfix(std::move(node));
  if (with_filters) node = filter_expressions(std::move(node));
  --depth_;
  return node;
}

NodePtr ExpressionParser::string_constant() {
  NodePtr node = make(Node::Kind::constant, current().line);
  std::string text;
  for (; current().kind == Token::Kind::string; advance()) text += current().text;
  node->value = std::move(text);
  return node;
}

NodePtr ExpressionParser::primary() {
  const Token token = current();
  NodePtr node = make(Node::Kind::constant, token.line);
  switch (token.kind) {
    case Token::Kind::name:
      advance();
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False")
        node->value = token.text[0] == 't' || token.text[0] == 'T';
      else if (token.text == "none" || token.text == "None")
        node->value = None{};
      else
        node = make(Node::Kind::name, token.line, {}, token.text);
      return node;
    case Token::Kind::string: return string_constant();
    case Token::Kind::integer:
    case Token::Kind::real:
      advance();
      node->value = token.kind == Token::Kind::integer ? Value(token.integer) : Value(token.real);
      return node;
    default: break;
  }
  if (token.is_symbol("[") || token.is_symbol("{")) return in_brackets(token.text == "{");
  if (!skip_symbol("(")) unexpected("an expression");
  node = tuple(true, true);
  expect_symbol(")");
  return node;
}

bool ExpressionParser::tuple_ends(std::string_view ends) const {
  const auto kind = current().kind;
  return kind == Token::Kind::print_end || kind == Token::Kind::block_end || current().is_symbol(")") ||
         (!ends.empty() && current().is_name(ends));
}

NodePtr ExpressionParser::tuple(bool conditional, bool in_parentheses, std::string_view ends) {
  const int line = current().line;
  std::vector<NodePtr> kids;
  bool several = false;
  while (true) {
    if (several && !kids.empty()) expect_symbol(",");
    if (tuple_ends(ends)) break;
    kids.push_back(expression(conditional));
    if (!current().is_symbol(",")) break;
    several = true;
  }
  if (!several && !kids.empty()) return std::move(kids[0]);
  if (kids.empty() && !in_parentheses) unexpected("an expression");
  return make(Node::Kind::tuple, line, std::move(kids));
}

NodePtr ExpressionParser::in_brackets(bool dict) {
  const int line = current().line;
  const std::string_view close = dict ? "}" : "]";
  advance();
  std::vector<NodePtr> kids;
  while (!current().is_symbol(close)) {
    if (!kids.empty()) expect_symbol(",");
    if (current().is_symbol(close)) break;
    kids.push_back(expression());
    if (!dict) continue;
    expect_symbol(":");
    kids.push_back(expression());
  }
  expect_symbol(close);
  return make(dict ? Node::Kind::dict : Node::Kind::list, line, std::move(kids));
}

NodePtr ExpressionParser::postfix(NodePtr node) {
  while (true) {
    const int line = current().line;
    if (skip_symbol(".")) {
      if (current().kind == Token::Kind::integer) {
        auto index = primary();
        node = make(Node::Kind::item, line, pair_of(std::move(node), std::move(index)));
      } else {
        node = make(Node::Kind::attribute, line, alone(std::move(node)), expect_name());
      }
    } else if (skip_symbol("[")) {
      node = subscript(std::move(node));
    } else if (current().is_symbol("(")) {
      node = make(Node::Kind::call, line, alone(std::move(node)));
      arguments(*node);
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::subscript(NodePtr node) {
  const int line = current().line;
  const auto part = [&]() -> NodePtr {
    return current().is_symbol(":") || current().is_symbol("]") ? nullptr : expression();
  };
  auto kids = alone(std::move(node));
  kids.push_back(part());
  bool slice = false;
  while (kids.size() < 4 && skip_symbol(":")) {
    slice = true;
    kids.push_back(part());
  }
  if (!slice && !kids[1]) unexpected("an index");
  expect_symbol("]");
  if (!slice) return make(Node::Kind::item, line, std::move(kids));
  kids.resize(4);
  return make(Node::Kind::slice, line, std::move(kids));
}

void ExpressionParser::arguments(Node& node) {
  expect_symbol("(");
  bool first = true;
  while (!current().is_symbol(")")) {
    if (!first) expect_symbol(",");
    first = false;
    if (current().is_symbol(")")) break;
    if (current().is_symbol("*") || current().is_symbol("**"))
      fail("arguments from a list or mapping (*, **) are not supported");
    const bool named = current().kind == Token::Kind::name && ahead().is_symbol("=");
    std::string name = named ? expect_name() : "";
    if (named) advance();
    if (!named && !node.named.empty()) fail("expected only named arguments behind a named one");
    if (node.kids.size() + node.named.size() > kMostArguments)
      fail("a call has more than " + std::to_string(kMostArguments) + " arguments");
    auto value = expression();
    node.height = std::max(node.height, value->height + 1);
    if (!named)
      node.kids.push_back(std::move(value));
    else if (std::ranges::find(node.named, name, [](const auto& one) { return one.first; }) != node.named.end())
      fail("the argument " + io::in_quotes(name) + " is there twice");
    else
      node.named.emplace_back(std::move(name), std::move(value));
  }
  expect_symbol(")");
  if (node.height > kTallestTree) fail("the expression is nested too deeply");
}

NodePtr ExpressionParser::filter_expressions(NodePtr node) {
  while (true) {
    const int line = current().line;
    if (current().is_symbol("|")) {
      node = filters(std::move(node));
    } else if (skip_name("is")) {
      node = test(std::move(node));
    } else if (current().is_symbol("(")) {
      node = make(Node::Kind::call, line, alone(std::move(node)));
      arguments(*node);
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::filters(NodePtr node, bool inline_first) {
  while (inline_first || skip_symbol("|")) {
    inline_first = false;
    const int line = current().line;
    const std::string name = expect_name();
    const Function* const filter = find_filter(name);
    if (!filter || current().is_symbol(".")) fail("the filter " + io::in_quotes(name) + " is not supported");
    node = make(Node::Kind::filter, line, alone(std::move(node)), name);
    node->filter = filter;
    if (current().is_symbol("(")) arguments(*node);
  }
  return node;
}

NodePtr ExpressionParser::test(NodePtr node) {
  const int line = current().line;
  const bool negated = skip_name("not");
  const std::string name = expect_name();
  const Test* const known = find_test(name);
  if (!known || current().is_symbol(".")) fail("the test " + io::in_quotes(name) + " is not supported");
  node = make(Node::Kind::test, line, alone(std::move(node)), name);
  node->test = known;
  const auto& token = current();
  const auto kind = token.kind;
  if (token.is_symbol("(")) {
    arguments(*node);
  } else if ((kind == Token::Kind::name && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) ||
             kind == Token::Kind::string || kind == Token::Kind::integer || kind == Token::Kind::real ||
             token.is_symbol("[") || token.is_symbol("{")) {
    if (token.is_name("is")) fail("a test follows a test, expected 'and' or 'or' between them");
    node->kids.push_back(postfix(primary()));
    node->height = std::max(node->height, node->kids.back()->height + 1);
  }
  if (!node->named.empty() || node->kids.size() != known->arguments + 1)
    fail(io::message("the test {} is given {} arguments, allowed: {}", io::in_quotes(name),
                     node->kids.size() - 1 + node->named.size(), known->arguments));
  return negated ? make(Node::Kind::negated, line, alone(std::move(node))) : std::move(node);
}

}  // namespace fp8::text::jinja
