// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/jinja/parser.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestStatement = 40;

using Look = std::function<void(const Node&)>;

void look_at(const Node& node, const Look& look) {
  look(node);
  for (const auto& kid : node.kids)
    if (kid) look_at(*kid, look);
  for (const auto& [name, kid] : node.named) look_at(*kid, look);
}

void look_at(const Statements& body, const Look& look) {
  for (const auto& statement : body) {
    for (const auto& expression : statement.expressions)
      if (expression) look_at(*expression, look);
    for (const auto& value : statement.parameters.defaults) look_at(*value, look);
    for (const auto& inner : statement.bodies) look_at(inner, look);
  }
}

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Statements run() {
    Statements all = body({});
    if (current().kind != Token::Kind::end) unexpected("text or a tag");
    return all;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  /// Up to a tag of `ends`, whose "{%" is passed and whose name is current; up to the end of the template without any.
  Statements body(Ends ends) {
    if (++depth_ > kDeepestStatement) fail("tags are nested too deeply");
    Statements all;
    while (current().kind != Token::Kind::end) {
      Statement one;
      one.line = current().line;
      if (current().kind == Token::Kind::data) {
        one.text = current().text;
        advance();
      } else if (current().kind == Token::Kind::print_begin) {
        advance();
        one.kind = Statement::Kind::print;
        one.expressions.push_back(tuple());
        expect(Token::Kind::print_end, "'}}'");
      } else {
        expect(Token::Kind::block_begin, "a tag");
        if (std::ranges::any_of(ends, [&](auto end) { return current().is_name(end); })) break;
        statement(one);
        expect(Token::Kind::block_end, "'%}'");
      }
      all.push_back(std::move(one));
    }
    if (ends.size() > 0 && current().kind == Token::Kind::end)
      unexpected("{% " + std::string(*(ends.end() - 1)) + " %}");
    --depth_;
    return all;
  }

  void expect(Token::Kind kind, std::string_view what) {
    if (current().kind != kind) unexpected(what);
    advance();
  }

  /// A tag's end, then its body up to {% end %}, whose name is passed.
  Statements block(Ends ends, bool pass = true) {
    skip_symbol(":");
    expect(Token::Kind::block_end, "'%}'");
    Statements inner = body(ends);
    if (pass) advance();
    return inner;
  }

  void statement(Statement& s) {
    static const std::pair<std::string_view, void (StatementParser::*)(Statement&)> kTags[] = {
        {"if", &StatementParser::branch},        {"for", &StatementParser::loop},
        {"set", &StatementParser::set},          {"macro", &StatementParser::macro},
        {"call", &StatementParser::call},        {"filter", &StatementParser::filter_block},
        {"with", &StatementParser::with},        {"generation", &StatementParser::generation},
        {"break", &StatementParser::leave_loop}, {"continue", &StatementParser::next_of_loop}};
    const std::string name = expect_name();
    for (const auto& [tag, parse] : kTags)
      if (tag == name) return (this->*parse)(s);
    fail("the tag " + io::in_quotes(name) + " is not supported, or stands where it has no begin");
  }

  void branch(Statement& s) {
    s.kind = Statement::Kind::branch;
    while (true) {
      s.expressions.push_back(tuple(/*conditional=*/false));
      s.bodies.push_back(block({"elif", "else", "endif"}, false));
      if (skip_name("elif")) continue;
      if (skip_name("else"))
        s.bodies.push_back(block({"endif"}));
      else
        advance();
      return;
    }
  }

  void loop(Statement& s) {
    s.kind = Statement::Kind::loop;
    s.targets.push_back(target("in"));
    if (!skip_name("in")) unexpected("'in'");
    s.expressions.push_back(tuple(/*conditional=*/false, false, "recursive"));
    s.expressions.push_back(skip_name("if") ? expression() : nullptr);
    if (current().is_name("recursive")) fail("recursive loops are not supported");
    ++loops_;
    s.bodies.push_back(block({"endfor", "else"}, false));
    --loops_;
    if (skip_name("else"))
      s.bodies.push_back(block({"endfor"}));
    else
      advance();
  }

  std::string name_to_assign() {
    std::string name = expect_name();
    for (const char* const fixed :
         {"true", "false", "none", "True", "False", "None", "loop", "caller", "varargs", "kwargs"})
      if (name == fixed) fail(io::in_quotes(name) + " can't be assigned");
    return name;
  }

  Target target(std::string_view end, bool with_attribute = false) {
    Target t;
    const bool parentheses = skip_symbol("(");
    t.names.push_back(name_to_assign());
    if (with_attribute && !parentheses && skip_symbol(".")) {
      t.attribute = expect_name();
      if (t.attribute.starts_with('_')) fail("a namespace's attribute can't begin with '_'");
      return t;
    }
    while (skip_symbol(",")) {
      t.several = true;
      if (current().is_symbol(")") || current().is_symbol("=") || current().is_name(end)) break;
      t.names.push_back(name_to_assign());
    }
    if (parentheses) expect_symbol(")");
    return t;
  }

  void set(Statement& s) {
    s.targets.push_back(target("", true));
    if (skip_symbol("=")) {
      s.kind = Statement::Kind::set;
      s.expressions.push_back(tuple());
      return;
    }
    s.kind = Statement::Kind::set_block;
    if (s.targets[0].several) fail("a block is set to several names, allowed: one");
    s.expressions.push_back(current().is_symbol("|") ? filters(nullptr) : nullptr);
    s.bodies.push_back(scoped({"endset"}));
  }

  /// The body of a tag that loops can't be left from.
  Statements scoped(Ends ends) {
    const int loops = std::exchange(loops_, 0);
    Statements inner = block(ends);
    loops_ = loops;
    return inner;
  }

  void parameters(Parameters& p) {
    expect_symbol("(");
    while (!current().is_symbol(")")) {
      if (!p.names.empty()) expect_symbol(",");
      p.names.push_back(name_to_assign());
      if (skip_symbol("="))
        p.defaults.push_back(expression());
      else if (!p.defaults.empty())
        fail("a parameter without a default follows one with a default");
    }
    expect_symbol(")");
  }

  void find_specials(Statement& s) const {
    look_at(s.bodies[0], [&](const Node& node) {
      if (node.kind != Node::Kind::name) return;
      s.parameters.varargs |= node.text == "varargs";
      s.parameters.kwargs |= node.text == "kwargs";
      s.parameters.caller |= node.text == "caller";
    });
  }

  void macro(Statement& s) {
    s.kind = Statement::Kind::macro;
    s.targets.emplace_back().names.push_back(name_to_assign());
    parameters(s.parameters);
    s.bodies.push_back(scoped({"endmacro"}));
    find_specials(s);
  }

  void call(Statement& s) {
    s.kind = Statement::Kind::call;
    if (current().is_symbol("(")) parameters(s.parameters);
    s.expressions.push_back(expression());
    if (s.expressions[0]->kind != Node::Kind::call) fail("expected a call of a macro");
    s.bodies.push_back(scoped({"endcall"}));
    find_specials(s);
  }

  void filter_block(Statement& s) {
    s.kind = Statement::Kind::filter;
    s.expressions.push_back(filters(nullptr, true));
    s.bodies.push_back(scoped({"endfilter"}));
  }

  void with(Statement& s) {
    s.kind = Statement::Kind::with;
    while (current().kind != Token::Kind::block_end) {
      if (!s.targets.empty()) expect_symbol(",");
      s.targets.push_back(Target{{name_to_assign()}, false, ""});
      expect_symbol("=");
      s.expressions.push_back(expression());
    }
    s.bodies.push_back(block({"endwith"}));
  }

  void generation(Statement& s) {
    s.kind = Statement::Kind::generation;
    s.bodies.push_back(scoped({"endgeneration"}));
  }

  void leave_loop(Statement& s) {
    s.kind = Statement::Kind::leave;
    if (loops_ == 0) fail("'break' stands outside a loop");
  }
  void next_of_loop(Statement& s) {
    s.kind = Statement::Kind::next;
    if (loops_ == 0) fail("'continue' stands outside a loop");
  }

  int depth_ = 0, loops_ = 0;
};

}  // namespace

Statements parse(std::string_view source, const std::string& name) {
  return StatementParser(tokens_of(source, name), name).run();
}

}  // namespace fp8::text::jinja
