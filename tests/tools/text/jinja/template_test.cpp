// SPDX-License-Identifier: Apache-2.0
// Templates against Jinja itself: fixtures/jinja.json has what it makes of them (make_jinja_fixtures.py).

#include "fp8/tools/text/chat/chat_template.h"
#include "support/golden.h"
#include "tools/text/fixture.h"

namespace fp8::text::jinja {
namespace {

/// The text, or "error: ..." of what is thrown.
std::string outcome(const std::string& source, const io::Json& variables = io::Json::object(),
                    const Limits& limits = {}) {
  try {
    return Template(source, "t").render(variables, limits);
  } catch (const io::Error& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(JinjaTemplate, RendersAsJinja) {
  const io::Json fixture = io::read_json(fp8::text::testing::fixtures() / "jinja.json");
  for (const auto& one : fixture["cases"]) {
    const auto source = one["template"].get<std::string>();
    const auto text = outcome(source, fixture["variables"]);
    if (one.contains("error"))
      EXPECT_THAT(text, StartsWith("error: t:")) << source;
    else
      EXPECT_EQ(text, one["text"].get<std::string>()) << source;
  }
}

TEST(JinjaTemplate, RendersChatsAsJinja) {
  const io::Json fixture = io::read_json(fp8::text::testing::fixtures() / "jinja.json");
  for (const auto& one : fixture["chats"]) {
    const Template chat(one["template"].get<std::string>(), one["name"].get<std::string>());
    for (const auto& row : one["chats"]) {
      io::Json variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"documents", nullptr}};
      for (const char* const name : {"messages", "tools", "add_generation_prompt"}) variables[name] = row[name];
      if (row.contains("error"))
        EXPECT_THROW(chat.render(variables), io::Error) << one["name"] << row;
      else
        EXPECT_EQ(chat.render(variables), row["text"].get<std::string>()) << one["name"];
    }
  }
}

TEST(JinjaTemplate, RefusesWhatItDoesNotKnowWithTheLine) {
  const auto refused = [](const std::string& source) {
    const std::string error = outcome(source);
    EXPECT_THAT(error, StartsWith("error: t:"));
    return error;
  };
  EXPECT_GOLDEN(refused(text));
  EXPECT_THAT(refused("\xff"), HasSubstr("not UTF-8"));
}

TEST(JinjaTemplate, HostileTemplatesEnd) {
  const Limits few{.steps = 200'000, .size = 1 << 20};
  const auto nested = [](const std::string& open, const std::string& inside, const std::string& close, int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += inside;
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  const std::string kHostile[] = {
      "{{ " + nested("(", "1", ")", 5000) + " }}",    "{{ " + nested("[", "1", "]", 5000) + " }}",
      "{{ " + nested("not ", "1", "", 5000) + " }}",  "{{ " + nested("-", "1", "", 5000) + " }}",
      "{{ 1" + nested("+1", "", "", 5000) + " }}",    "{{ x" + nested(".y", "", "", 5000) + " }}",
      "{{ x" + nested("|trim", "", "", 5000) + " }}", nested("{% if 1 %}", "x", "{% endif %}", 5000)};
  for (const auto& source : kHostile)
    EXPECT_THAT(outcome(source, {}, few), StartsWith("error: t:")) << source.substr(0, 100);
  EXPECT_GOLDEN(outcome(text, {}, few));
}

TEST(JinjaTemplate, ErrorsAreOneLine) {
  EXPECT_THAT(outcome("{{ raise_exception('a\nb') }}"), ::testing::Eq("error: t:1: the template refuses: a\\x0ab"));
  EXPECT_THAT(outcome("\n\n{{ x.y }}"), StartsWith("error: t:3: 'x' is undefined"));
}

// Costs of templates: steps by the bytes that they look at, values by the bytes that are alive.

constexpr const char *kSteps = "operations", *kHeld = "bytes at a time";

/// The text, or "error: ..." of what is thrown.
std::string rendered(const std::string& source, const Limits& limits = {}) {
  try {
    return Template(source, "t").render(io::Json::object(), limits);
  } catch (const io::Error& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(JinjaCost, StepsAreCountedByTheBytesThatAreLookedAt) {
  const Limits few{.steps = 500'000};
  const std::string begin =
      "{% set x = 'a' * 1000000 %}{% set y = 'a' * 1000000 %}{% set s = ' ' * 1000000 %}{% set n = '0' * 1000000 %}{% "
      "set p = 'a.' * 500000 %}{% set d = {x: 1} %}{% set e = {y: 1} %}{% set many = [1] * 20000 %}";
  ASSERT_EQ(rendered(begin, few), "");
  std::istringstream expressions(
      R"('b' in x; x not in y; x == y; x != y; x < y; x >= y; [x] == [y]; d == e; y in d; y in [x]; many == many[:];
x ~ 1; x + 'b'; x * 2; many * 2; many + many; x[1:]; x[::-1]; x[::2]; x[-1]; d[y]; d.get(y); {y: 1}; dict(d);
namespace(d); d.keys(); d.items(); [1].count(x) or x.count('b'); x.find('b'); x.rfind('b'); x.replace('b', 'c');
x.split('b'); x.rsplit('b'); x.split(); x.splitlines(); x.partition('b'); x.rpartition('b'); x.startswith(y);
x.endswith(y); x.startswith(('b', y)); x.removeprefix('b'); x.removesuffix('b'); x.strip('a'); x.lstrip('a');
x.rstrip('ab'); s.strip(); 'a'.strip(x); s.isspace(); n.isdigit(); x.isalpha(); x.upper(); x.title();
x.join(['b', 'c']); 'b'.join([x]); x|trim; x|upper; x|title; x|string; x|length; x|reverse; x|replace('b', 'c');
x|indent; x|tojson; d|tojson; [x, y]|tojson(indent=2); d|tojson(sort_keys=true); 'b'|tojson(indent=x);
[x]|string; [1, 2]|join(x); [x]|join; [x, y]|sort; [x, y]|unique|list; [x]|map('upper')|list;
[d]|map(attribute=y)|list; [{'a': 1}]|map(attribute=p, default={})|list; [x]|select('equalto', y)|list;
d|dictsort; d|items; n|int(0); n|float(0); many|sort; many|first; strftime_now(x))");
  for (std::string expression; std::getline(expressions >> std::ws, expression, ';');)
    EXPECT_THAT(rendered(begin + "{% for i in range(50) %}{% set r = " + expression + " %}{% endfor %}", few),
                HasSubstr(kSteps))
        << expression;
}

// With the product of the two lengths each of them would take minutes.
TEST(JinjaCost, SearchingIsLinear) {
  const std::string begin =
      "{% set t = 'a' * 8000000 %}{% set n = 'a' * 4000000 ~ 'b' %}{% set m = 'b' ~ 'a' * 4000000 %}";
  EXPECT_EQ(rendered(begin + "{{ n in t }} {{ t.find(n) }} {{ t.rfind(m) }} {{ t.count(n) }} {{ t.index(n[:-1]) }}"),
            "False -1 -1 0 0");
  EXPECT_EQ(rendered(begin + "{{ t.split(n)|length }} {{ t.rsplit(m)|length }} {{ t.partition(n)[1]|length }}"),
            "1 1 0");
  EXPECT_EQ(rendered(begin + "{{ t.rpartition(m)[1]|length }} {{ t.replace(n, 'c')|length }}"), "0 8000000");
  EXPECT_EQ(rendered("{% set set = 'é' * 200000 ~ 'a' %}{{ ('a' * 200000 ~ 'b' ~ 'é' * 9).strip(set) }}"), "b");
}

TEST(JinjaCost, PythonsAnswersFromTheRight) {
  EXPECT_GOLDEN(rendered(text));
  EXPECT_EQ(rendered("{{ 'a b'|indent('> ', true) }}{{ 'a\n\nb'|indent(1, false, true) }}|"), "> a ba\n \n b|");
}

TEST(JinjaCost, WhatIsAliveIsBounded) {
  const Limits limits{.held = std::size_t{64} << 20};
  const std::string begin = "{% set x = 'a' * 2000000 %}{% set n = namespace(l=[], x='') %}";
  for (const char* const body :
       {"{% for i in range(40) %}{% set n.l = n.l + [x ~ i] %}{% endfor %}",
        "{% for i in range(40) %}{% set n.l = n.l + [[i, i]|join(x)] %}{% endfor %}",
        "{% for i in range(40) %}{% set n.l = n.l + [{x ~ i: 1}] %}{% endfor %}",
        "{% for i in range(40) %}{% set n.l = n.l + [dict({x: 1})] %}{% endfor %}",
        "{% for i in range(40) %}{% set n.l = n.l + [[1] * 100000] %}{% endfor %}",
        "{% for i in range(40) %}{% set n.l = n.l + [xx, xy] * 50000 %}{% endfor %}",
        "{% macro f(i) %}{{ x }}{% if i %}{{ f(i - 1) }}{% endif %}{% endmacro %}{{ f(40)|length }}",
        "{% macro f(i) %}{% set r = x ~ i %}{% if i %}{{ f(i - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f(i) %}{{ i and [1] * 100000 ~ f(i - 1) }}{% endmacro %}{{ f(40) }}",
        "{% macro f(i) %}{% for j in [1] * 100000 %}{{ f(i - 1) if i }}{% break %}{% endfor %}{% endmacro %}{{ f(40) "
        "}}",
        "{% set r = {x: 1, x ~ 1: 1, x ~ 2: 1, x ~ 3: 1, x ~ 4: 1, x ~ 5: 1, x ~ 6: 1, x ~ 7: 1, x ~ 8: 1, x ~ 9: 1, x "
        "~ 10: 1, x ~ 11: 1, x ~ 12: 1} %}",
        "{% set r = x|list %}", "{% set r = ('a,' * 2000000).split(',') %}"})
    EXPECT_THAT(rendered(begin + body, limits), HasSubstr(kHeld)) << body;
  // Values that are dropped are not counted.
  EXPECT_EQ(rendered(begin + "{% for i in range(100) %}{% set n.x = x ~ i %}{% endfor %}{{ n.x|length }}", limits),
            "2000002");
  EXPECT_EQ(rendered(begin + "{% for i in range(50) %}{% set r = [[x], {x: i}, x|upper] %}{% endfor %}", limits), "");
}

TEST(JinjaCost, OneTextIsBoundedWhileItIsMade) {
  const Limits limits{.size = std::size_t{4} << 20};
  const std::string begin = "{% set x = 'a' * 2000000 %}";
  for (const char* const expression :
       {"[1, 2, 3, 4]|join(x)", "x.join(['1', '2', '3', '4'])", "'\n\n\n'|indent(x, true, true)",
        "[[[1]]]|tojson(indent=x)", "[1, 2, 3, 4]|tojson(separators=(x, x))", "('\\x00' * 2000000)|tojson",
        "['\\x00' * 2000000]|string", "x ~ x ~ x"})
    EXPECT_THAT(rendered(begin + "{{ " + expression + " }}", limits),
                HasSubstr("text or list of more than 4194304 bytes"))
        << expression;
}

TEST(JinjaCost, ParsingIsBounded) {
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_THAT(rendered("{{ " + std::string(300, 'a') + " }}"), HasSubstr("a name has 300 letters, allowed: 256"));
  EXPECT_THAT(rendered("{{ dict(" + repeated("1, ", 300) + ") }}"), HasSubstr("more than 255 arguments"));
  EXPECT_THAT(rendered("{{ [" + repeated("1, ", 400'000) + "] }}"), HasSubstr("more than 1048576 bytes"));
}

TEST(JinjaCost, ATemplateIsAskedWhetherToGoOn) {
  struct Stop : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  int asked = 0;
  Limits limits{.ask = [&] { ++asked; }};
  rendered("{% for i in range(100000) %}{% endfor %}", limits);
  EXPECT_GT(asked, 20);  // every few thousand of its 400000 steps
  asked = 0;
  rendered("{% set x = 'a' * 20000000 %}{% for i in range(30) %}{% set y = x ~ i %}{% endfor %}", limits);
  EXPECT_GT(asked, 30);  // in a few operations that are long
  // Its exception passes the code that adds the row's place to errors of templates.
  const fp8::text::testing::Folder folder;
  folder.write("chat_template.jinja", "{% for i in range(100000) %}{% endfor %}");
  RowTexts texts(folder.path(), RowUse::text, [] { throw Stop("stop"); });
  const io::Json row = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  EXPECT_THROW(texts.text_of(row, "d.jsonl:1"), Stop);
}

}  // namespace
}  // namespace fp8::text::jinja
