// SPDX-License-Identifier: Apache-2.0
// Templates against Jinja itself: fixtures/jinja.json has what it makes of them (make_jinja_fixtures.py).
#include "fp8/tools/text/jinja/machine.h"
#include "tools/text/fixture.h"

namespace fp8::text::jinja {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
      EXPECT_THAT(text, ::testing::StartsWith("error: t:")) << source;
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
  const std::pair<const char*, const char*> kRefused[] = {
      {"a\n{% include 'x' %}", "t:2: the tag 'include' is not supported"},
      {"{% extends 'x' %}", "'extends'"},
      {"{% block b %}{% endblock %}", "'block'"},
      {"{% do x %}", "'do'"},
      {"{% for x in [[1]] recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{{ f(*a) }}", "(*, **) are not supported"},
      {"{{ 'a'|wordcount }}", "the filter 'wordcount' is not supported"},
      {"{{ 'a'|e }}", "the filter 'e' is not supported"},
      {"{{ ('a'|safe) + 'b' }}", "went through |safe is added to"},
      {"{{ ('a'|safe).upper() }}", "asked for an attribute"},
      {"{{ 'a'|safe|upper }}", "filtered"},
      {"{{ 1 is escaped }}", "the test 'escaped' is not supported"},
      {"{{ '%s' % 1 }}", "'%' between str and int is not supported"},
      {"{{ '{}'.format(1) }}", "the method 'format' of a str is not supported"},
      {"{{ 'é'|upper }}", "letters beyond ASCII"},
      {"{{ [1]|select('odd') }}", "a generator is written out"},
      {"{% set g = [1]|select('odd') %}{{ g|list }}{{ g|list }}", "a second time"},
      {"{{ {'a': 1}.items() }}", "a view is written out"},
      {"{{ 0x10 }}", "is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "too large"},
      {"{{ 'a\\101' }}", "is not supported"},
      {"{{ 'a'.__class__ }}", "'__'"},
      {"{{ strftime_now('%c') }}", "'%c' is not supported"},
      {"{{ {1: 2} }}", "expected a string as a key"},
      {"{% set n = namespace() %}{{ [n] }}", "inside a list"},
      {"{% set n = namespace(a=true) %}{% for x in [1, 2] if n.a %}{% set n.a = false %}{% endfor %}", "condition"},
      {"\xff", "not UTF-8"}};
  for (const auto& [source, message] : kRefused)
    EXPECT_THAT(outcome(source), AllOf(::testing::StartsWith("error: t:"), HasSubstr(message))) << source;
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
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
      "{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
      "{{ 'a' * 1000000000000 }}",
      "{{ [0] * 1000000000000 }}",
      "{{ 'a'|indent(1000000000000, true) }}",
      "{{ [1]|tojson(indent=1000000000000) }}",
      "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
      "{{ 2 ** 63 }}",
      "{{ " + nested("(", "1", ")", 5000) + " }}",
      "{{ " + nested("[", "1", "]", 5000) + " }}",
      "{{ " + nested("not ", "1", "", 5000) + " }}",
      "{{ " + nested("-", "1", "", 5000) + " }}",
      "{{ 1" + nested("+1", "", "", 5000) + " }}",
      "{{ x" + nested(".y", "", "", 5000) + " }}",
      "{{ x" + nested("|trim", "", "", 5000) + " }}",
      nested("{% if 1 %}", "x", "{% endif %}", 5000)};
  for (const auto& source : kHostile)
    EXPECT_THAT(outcome(source, {}, few), ::testing::StartsWith("error: t:")) << source.substr(0, 100);
}

TEST(JinjaTemplate, ErrorsAreOneLine) {
  EXPECT_THAT(outcome("{{ raise_exception('a\nb') }}"), ::testing::Eq("error: t:1: the template refuses: a\\x0ab"));
  EXPECT_THAT(outcome("\n\n{{ x.y }}"), ::testing::StartsWith("error: t:3: 'x' is undefined"));
}

}  // namespace
}  // namespace fp8::text::jinja
