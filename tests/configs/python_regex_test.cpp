// SPDX-License-Identifier: Apache-2.0
// Each expectation is what Python 3.11's re.search answers to the same pattern and text.
#include "fp8/configs/python_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fp8/runtime/io/base/file.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::HasSubstr;

bool search(std::string_view pattern, std::string_view text) { return PythonRegex(pattern, "test").search(text); }

std::string regex_error(std::string_view pattern, std::string_view text = "") {
  return test::error_of<io::Error>([&] { PythonRegex(pattern, "quant.json: key 'blocklist.names[0]'").search(text); });
}

struct Case {
  std::string pattern, text;
  bool found;
};

class PythonSemantics : public testing::TestWithParam<Case> {};

TEST_P(PythonSemantics, Search) {
  const Case& c = GetParam();
  EXPECT_EQ(search(c.pattern, c.text), c.found) << c.pattern << " in " << c.text;
}

INSTANTIATE_TEST_SUITE_P(
    SearchNotMatch, PythonSemantics,
    testing::Values(Case{"lm_head", "model.lm_head", true}, Case{"lm_head", "lm_head_norm", true},
                    Case{"^lm_head", "model.lm_head", false}, Case{"lm_head$", "model.lm_head", true},
                    Case{"LM_HEAD", "model.lm_head", false}, Case{"(?i)LM_HEAD", "model.lm_head", true},
                    Case{"(?-i:lm)_head", "lm_head", true}, Case{"(?>a+)b", "aab", true},
                    Case{"(?#c)(?<=l)m", "lm", true}, Case{"(?<!l)m", "lm", false}, Case{"(a)?(?(1)b|c)", "c", true},
                    Case{"", "anything", true}, Case{"", "", true}, Case{"x", "", false},
                    Case{"self.attn", "self_attn", true}));

INSTANTIATE_TEST_SUITE_P(
    AsUsedForModels, PythonSemantics,
    testing::Values(Case{R"(mlp\.gate\b)", "layers.3.mlp.gate", true},
                    Case{R"(mlp\.gate\b)", "layers.3.mlp.gate_proj", false},
                    Case{R"(mlp\.gate\b)", "layers.3.mlp.gate.weight", true},
                    Case{R"(layers\.(\d+)\.)", "model.layers.17.fc", true},
                    Case{R"(layers\.[0-3]\.)", "model.layers.17.fc", false}, Case{"(q|k|v)_proj", "attn.k_proj", true},
                    Case{"^(?!.*lm_head).*$", "model.lm_head", false}, Case{"^(?!.*lm_head).*$", "model.fc", true},
                    Case{R"((?P<a>x)\d(?P=a))", "x1x", true}, Case{R"((?P<a>x)\d(?P=a))", "x1y", false}));

INSTANTIATE_TEST_SUITE_P(
    WhereTheLanguagesDiffer, PythonSemantics,
    testing::Values(Case{R"(fc\Z)", "fc\n", false}, Case{R"(fc\Z)", "fc", true}, Case{"fc$", "fc\n", true},
                    Case{"a.b", "a\nb", false}, Case{"a.b", "a\rb", true}, Case{R"(\v)", "\n", false},
                    Case{R"(\v)", "\x0b", true}, Case{"a{,2}b", "aab", true}, Case{"^a{,2}b", "aaab", false},
                    Case{"^a{,}b", "aaaab", true}, Case{"^a{,2}b", "a{,2}b", false}, Case{"^[[:alpha:]]$", "b", false},
                    Case{"^[[:alpha:]]$", "h]", true}, Case{"^[[:alpha:]]$", "[]", true}, Case{R"(\u0041)", "A", true},
                    Case{R"(\U0001F600)", "\xF0\x9F\x98\x80", true}, Case{R"(\x41)", "A", true},
                    Case{"(?=a)(?:ab)*a", "ab", true}, Case{R"(0[.[\d.])", "0.", true}, Case{"^[:a:]$", ":", true},
                    Case{"[]a]", "]", true}, Case{"^[^]a]$", "]", false}, Case{R"(\0)", "\0"s, true},
                    Case{R"([\b])", "\b", true}));

INSTANTIATE_TEST_SUITE_P(Unicode, PythonSemantics,
                         testing::Values(Case{R"(^\w+$)", "sch\xC3\xB6n", true}, Case{"^.$", "\xC3\xB6", true},
                                         Case{R"(^\d$)", "\xD9\xA3", true}, Case{"\\\xC3\xB6", "\xC3\xB6", true},
                                         Case{"[\xC3\xB6]", "\xC3\xB6", true}));

TEST(PythonRegex, BadPatternNamesFilePatternAndOffset) {
  EXPECT_THAT(regex_error("a(b"), AllOf(HasSubstr("quant.json: key 'blocklist.names[0]': pattern 'a(b': "),
                                        HasSubstr("missing closing parenthesis"), HasSubstr("at offset 3")));
  EXPECT_THAT(regex_error("[a"), HasSubstr("at offset 2"));
  EXPECT_THAT(regex_error("a**"), AllOf(HasSubstr("pattern 'a**'"), HasSubstr("offset")));
  EXPECT_THAT(regex_error("ab\\"), HasSubstr("bad escape (end of pattern), at offset 2"));
  EXPECT_THAT(regex_error("*a"), HasSubstr("at offset 0"));
}

// The translation is longer than the pattern; offsets still count in the pattern.
TEST(PythonRegex, OffsetsAreThoseOfTheOriginal) {
  EXPECT_THAT(regex_error(R"(\v\v(a)"), HasSubstr("at offset 6"));
  EXPECT_THAT(regex_error("[[[]a)b"), HasSubstr("at offset 5"));
}

TEST(PythonRegex, WhatPythonRejectsIsRejected) {
  for (const char* pattern :
       {R"(\h)", R"(\K)", R"(\Qa\E)", R"(\R)", R"(\p{L})", R"(\G)", R"(\X)", R"(\e)", R"(\z)", R"([\A])"}) {
    EXPECT_THAT(regex_error(pattern), HasSubstr("bad escape \\")) << pattern;
  }
  for (const char* pattern : {"a(?R)", "a(?1)", "a(?-1)", "a(?+1)", "a(?&n)", "a(?P>n)", "a(?|b)", "a(?<n>b)", "a(?C1)",
                              "(?J)a", "(?iU:a)", "(?n)", "(?i", "a(?"}) {
    EXPECT_THAT(regex_error(pattern), HasSubstr("unknown extension (?")) << pattern;
  }
  EXPECT_THAT(regex_error("a(?i)b"), HasSubstr("global flags not at the start of the expression, at offset 1"));
  EXPECT_THAT(regex_error("(?-i)b"), HasSubstr("missing :"));
  EXPECT_TRUE(search("(?i)(?s)A.", "a\n"));
  EXPECT_THAT(regex_error("(*LIMIT_MATCH=1)a"), HasSubstr("nothing to repeat, at offset 1"));
  EXPECT_THAT(regex_error("(*UCP)a"), HasSubstr("nothing to repeat"));
  EXPECT_THAT(regex_error(R"(\x4)"), HasSubstr("incomplete escape \\x, at offset 0"));
  EXPECT_THAT(regex_error(R"(a\u12)"), HasSubstr("incomplete escape \\u, at offset 1"));
  EXPECT_THAT(regex_error(R"(\U00110000)"), HasSubstr("offset"));
  EXPECT_THAT(regex_error("\xFF"), HasSubstr("UTF-8"));
}

TEST(PythonRegex, ExplodingPatternsEndInAnErrorNotInAHang) {
  const std::string text = std::string(29, 'a') + "b";  // PCRE2's own limit, ten times ours, would let this pass
  EXPECT_THAT(regex_error("(a|aa)+$", text), AllOf(HasSubstr("pattern '(a|aa)+$' on '"), HasSubstr("match limit")));
  EXPECT_THAT(regex_error(std::string(70000, 'a')), HasSubstr("longer than 65536 bytes"));
  EXPECT_THAT(regex_error("(((a{1000}){1000}){1000}){1000}"), HasSubstr("too large"));
  EXPECT_THAT(regex_error(std::string(5000, '(') + std::string(5000, ')')), HasSubstr("too"));
}

TEST(PythonRegex, TextThatIsNotUtf8IsAnError) { EXPECT_THAT(regex_error("a", "\xFF"), HasSubstr("UTF-8")); }

TEST(PythonRegex, CopiesWork) {
  PythonRegex first("b+", "test");
  const PythonRegex second = first;
  first = PythonRegex("c", "test");
  EXPECT_TRUE(second.search("abb"));
  EXPECT_EQ(second.pattern(), "b+");
  EXPECT_FALSE(first.search("abb"));
}

}  // namespace
}  // namespace fp8::configs
