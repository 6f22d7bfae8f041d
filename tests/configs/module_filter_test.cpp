// SPDX-License-Identifier: Apache-2.0
// The rule of allowlist and blocklist: every combination against its formula, the documented cases, and unused
// entries.
#include <random>

#include "fp8/configs/module_types.h"
#include "fp8/configs/name_patterns.h"
#include "support/golden.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

using namespace std::string_literals;

bool selects(const ModuleList& allow, const ModuleList& block, const char* type, const char* name) {
  return ModuleFilter(allow, block, "quant.json").selects(type, name);
}

// All 16 combinations of lists that do or do not hold the module's type and name.
TEST(ModuleFilter, FollowsTheFormula) {
  for (int bits = 0; bits < 64; ++bits) {
    const bool allow_type = bits & 1, allow_name = bits & 2, block_type = bits & 4, block_name = bits & 8;
    const bool other_type = bits & 16, other_name = bits & 32;  // entries that match something else
    ModuleList allow, block;
    if (allow_type) allow.types.push_back("Linear");
    if (other_type) allow.types.push_back("Conv2d");
    if (allow_name) allow.names.push_back("fc1");
    if (other_name) allow.names.push_back("gate");
    if (block_type) block.types.push_back("Linear");
    if (block_name) block.names.push_back("fc1");
    const bool empty = !allow_type && !allow_name && !other_type && !other_name;
    EXPECT_EQ(selects(allow, block, "Linear", "layers.0.fc1"),
              !block_type && (empty || allow_type || allow_name) && !block_name)
        << bits;
  }
}

TEST(ModuleFilter, EmptyListsSelectEverything) { EXPECT_TRUE(selects({}, {}, "Linear", "fc")); }

TEST(ModuleFilter, TypesAreExactNamesAreSearched) {
  EXPECT_FALSE(selects({{}, {"torch.nn.Linear"}}, {}, "Linear", "fc"));
  EXPECT_FALSE(selects({{}, {"linear"}}, {}, "Linear", "fc"));
  EXPECT_FALSE(selects({{}, {"Lin"}}, {}, "Linear", "fc"));
  EXPECT_TRUE(selects({{"ayers"}, {}}, {}, "Linear", "layers.0.fc"));
  EXPECT_FALSE(selects({{"Layers"}, {}}, {}, "Linear", "layers.0.fc"));
  EXPECT_FALSE(selects({}, {{"lm_head"}, {}}, "Linear", "model.lm_head"));
  EXPECT_TRUE(selects({}, {{R"(mlp\.gate\b)"}, {}}, "Linear", "layers.0.mlp.gate_proj"));
}

TEST(ModuleFilter, BlocklistBeatsAllowlist) {
  EXPECT_FALSE(selects({{"fc"}, {"Linear"}}, {{"fc"}, {}}, "Linear", "fc"));
  EXPECT_FALSE(selects({{"fc"}, {"Linear"}}, {{}, {"Linear"}}, "Linear", "fc"));
}

TEST(ModuleFilter, BadPatternNamesListAndIndex) {
  EXPECT_ERROR(io::Error, ModuleFilter({}, {{"ok", "a(b"}, {}}, "quant.json"),
               "quant.json: key 'blocklist.names[1]': pattern 'a(b'", "offset 3");
}

TEST(ModuleFilter, UnusedEntriesAreThoseThatNoModuleNeeded) {
  ModuleFilter filter({{"fc1", "router"}, {"torch.nn.Linear", "Linear"}}, {{"lm_head"}, {"Embeding"}}, "quant.json");
  filter.selects("Linear", "layers.0.fc1");
  filter.selects("Embedding", "embed");
  filter.selects("Linear", "lm_head");
  const std::vector<UnusedEntry> unused = filter.unused_entries();
  ASSERT_EQ(unused.size(), 3u);
  EXPECT_EQ(unused[0].key, "allowlist.types");
  EXPECT_EQ(unused[0].entry, "torch.nn.Linear");
  EXPECT_THAT(unused[0].message,
              AllOf(HasSubstr("quant.json: key 'allowlist.types': 'torch.nn.Linear' matches no module"),
                    HasSubstr("did you mean 'Linear'?")));
  EXPECT_EQ(unused[1].key, "allowlist.names");
  EXPECT_EQ(unused[1].entry, "router");
  EXPECT_THAT(unused[1].message, HasSubstr("regular expressions"));
  EXPECT_EQ(unused[2].key, "blocklist.types");
  EXPECT_THAT(unused[2].message, HasSubstr("did you mean 'Embedding'?"));
}

// An entry counts as used even when another one decided before it.
TEST(ModuleFilter, EveryMatchingEntryIsUsed) {
  ModuleFilter filter({{"fc", "fc1"}, {"Linear"}}, {{"fc"}, {"Linear"}}, "quant.json");
  EXPECT_FALSE(filter.selects("Linear", "fc1"));
  EXPECT_TRUE(filter.unused_entries().empty());
}

TEST(ModuleFilter, UnusedEntryOfAModelWithoutModulesHasNoSuggestion) {
  const ModuleFilter filter({{}, {"torch.nn.Linear"}}, {}, "quant.json");
  ASSERT_EQ(filter.unused_entries().size(), 1u);
  EXPECT_THAT(filter.unused_entries()[0].message, Not(HasSubstr("did you mean")));
}

TEST(NamePatterns, AreSearchedAnywhereInAName) {
  const NamePatterns patterns({"lm_head", R"(layers\.0\.)", "^embed"}, "--keep");
  EXPECT_TRUE(patterns.matches("model.lm_head"));
  EXPECT_TRUE(patterns.matches("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(patterns.matches("model.layers.10.mlp.up_proj"));
  EXPECT_TRUE(patterns.matches("embed_tokens"));
  EXPECT_FALSE(patterns.matches("model.embed_tokens"));
  EXPECT_FALSE(patterns.matches("model.LM_HEAD"));
  EXPECT_FALSE(patterns.matches(""));
}

TEST(NamePatterns, TheFirstThatMatchesCounts) {
  const NamePatterns patterns({"q_proj", "proj", "q"}, "rules");
  EXPECT_EQ(patterns.first_match("attn.q_proj"), 0u);
  EXPECT_EQ(patterns.first_match("attn.o_proj"), 1u);
  EXPECT_EQ(patterns.first_match("attn.q_norm"), 2u);
  EXPECT_EQ(patterns.first_match("mlp.gate"), std::nullopt);
}

TEST(NamePatterns, NoneMatchesNothing) {
  const NamePatterns none;
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.matches("lm_head"));
  EXPECT_THAT(none.idle({"lm_head"}), IsEmpty());
  EXPECT_TRUE(NamePatterns({""}, "--keep").matches("anything"));  // as in Python
}

TEST(NamePatterns, IdleOnesAreInNoName) {
  const NamePatterns patterns({"up_proj", "gate$", "lm_haed"}, "--exclude");
  EXPECT_THAT(patterns.idle({"mlp.up_proj", "mlp.gate_proj"}), ElementsAre(1, 2));
  EXPECT_THAT(patterns.idle({}), ElementsAre(0, 1, 2));
}

TEST(MatchExpression, IsBoundAtTheStartAlone) {
  const NamePatterns patterns({match_expression("model|lm_head")}, "ignore");
  EXPECT_TRUE(patterns.matches("lm_head.weight"));
  EXPECT_FALSE(patterns.matches("language_model.lm_head"));
}

TEST(MatchesWildcard, TakesTheWholeName) {
  EXPECT_TRUE(matches_wildcard("*.mlp.experts*", "model.layers.0.mlp.experts.3"));
  EXPECT_TRUE(matches_wildcard("layers.?.g[ab]te", "layers.0.gate"));
  EXPECT_FALSE(matches_wildcard("lm_head", "model.lm_head"));
  EXPECT_FALSE(matches_wildcard("a\\*", "a*"));  // no escapes
}

TEST(NamePatterns, ABadExpressionNamesItsPlace) {
  EXPECT_ERROR(io::Error, NamePatterns({"fine", "a(b"}, "--exclude"), "--exclude: pattern 'a(b'");
  NamePatterns patterns;
  patterns.add("a", "key 'names[0]'");
  EXPECT_THROW(patterns.add("*", "key 'names[1]'"), io::Error);
  EXPECT_EQ(patterns.size(), 1u);
  EXPECT_EQ(patterns[0].pattern(), "a");
}

// The tables of kinds and classes.

TEST(ModuleTypes, RowsOfKindsFitTogether) {
  for (const KindInfo& info : module_kinds()) {
    const char* name = name_of(info.kind);
    EXPECT_EQ(&info_of(info.kind), &info) << name;
    EXPECT_TRUE(!info.linear || info.weight) << name;
    EXPECT_TRUE(!info.product || (info.inputs == 2 && !info.weight)) << name;
    EXPECT_TRUE(!info.lookup || info.weight) << name;
    EXPECT_EQ(info.inputs > 0, info.quantized) << name;
  }
}

TEST(ModuleTypes, EveryKindHasAClassAndEveryClassStandsOnce) {
  std::set<ModuleKind> kinds;
  std::set<std::string_view> names;
  for (const ModuleType& type : module_types()) {
    kinds.insert(type.kind);
    EXPECT_TRUE(names.insert(type.name).second) << type.name;
    const ModuleType* found = find_module_type(type.name);
    ASSERT_NE(found, nullptr) << type.name;
    EXPECT_EQ(found->name, type.name);
    EXPECT_TRUE(is_of_kind(type.name, type.kind)) << type.name;
  }
  EXPECT_EQ(kinds.size(), module_kinds().size());
}

TEST(ModuleTypes, KindsAreAskedByClass) {
  EXPECT_TRUE(is_linear("Linear"));
  EXPECT_TRUE(is_linear("RowParallelLinear"));
  for (const char* other : {"Conv2d", "Embedding", "Matmul", "LayerNorm", "linear", ""}) EXPECT_FALSE(is_linear(other));
  EXPECT_TRUE(type_is("VLLMKVCache", &KindInfo::cache));
  for (const char* other : {"Softmax", "FusedMoE", "LayerNorm"}) EXPECT_FALSE(type_is(other, &KindInfo::cache));
  EXPECT_TRUE(is_of_kind("VLLMKVCache", ModuleKind::kv_cache));
  EXPECT_FALSE(is_of_kind("Softmax", ModuleKind::kv_cache));
  EXPECT_FALSE(is_of_kind("LayerNorm", ModuleKind::no_quantize)) << "not known";
}

// Edit distance against its textbook values and its recursive definition.

std::size_t by_definition(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::size_t replaced = by_definition(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1);
  const bool exchanged = a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0];
  return std::min({replaced, by_definition(a.substr(1), b) + 1, by_definition(a, b.substr(1)) + 1,
                   exchanged ? by_definition(a.substr(2), b.substr(2)) + 1 : replaced});
}

TEST(Closest, TextbookDistances) {
  const auto distance = [](const std::string& words) {  // "ONE|OTHER"
    return std::to_string(edit_distance(words.substr(0, words.find('|')), words.substr(words.find('|') + 1)));
  };
  EXPECT_GOLDEN(distance(text));
  EXPECT_EQ(edit_distance("", ""), 0u);
}

TEST(Closest, EqualsTheRecursiveDefinition) {
  std::mt19937 random(3);
  const auto word = [&] {
    std::string text(random() % 6, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 500; ++i) {
    const std::string a = word(), b = word();
    EXPECT_EQ(edit_distance(a, b), by_definition(a, b)) << a << " " << b;
  }
}

TEST(Closest, FindsTheNearestAndBoundsTheWork) {
  EXPECT_EQ(closest("obsever", {"mode", "observer", "method"}), "observer");
  EXPECT_EQ(closest("x", {}), "");
  EXPECT_EQ(closest("", {"ab", "a"}), "a");
  EXPECT_EQ(closest(std::string(100000, 'z'), {"mode"}), "mode");
}

// Each expectation is what Python 3.11's re.search answers to the same pattern and text.

bool search(std::string_view pattern, std::string_view text) { return PythonRegex(pattern, "test").search(text); }

std::string regex_error(std::string_view pattern, std::string_view text = "") {
  return error_of<io::Error>([&] { PythonRegex(pattern, "quant.json: key 'blocklist.names[0]'").search(text); });
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

TEST(PythonRegex, BadPatternNamesFilePatternAndOffset) { EXPECT_GOLDEN(regex_error(text)); }

// The translation is longer than the pattern; offsets still count in the pattern.
TEST(PythonRegex, OffsetsAreThoseOfTheOriginal) {
  EXPECT_THAT(regex_error(R"(\v\v(a)"), HasSubstr("at offset 6"));
  EXPECT_THAT(regex_error("[[[]a)b"), HasSubstr("at offset 5"));
}

TEST(PythonRegex, WhatPythonRejectsIsRejected) {
  for (const char* pattern :
       {R"(\h)", R"(\K)", R"(\Qa\E)", R"(\R)", R"(\p{L})", R"(\G)", R"(\X)", R"(\e)", R"(\z)", R"([\A])"})
    EXPECT_THAT(regex_error(pattern), HasSubstr("bad escape \\")) << pattern;
  for (const char* pattern : {"a(?R)", "a(?1)", "a(?-1)", "a(?+1)", "a(?&n)", "a(?P>n)", "a(?|b)", "a(?<n>b)", "a(?C1)",
                              "(?J)a", "(?iU:a)", "(?n)", "(?i", "a(?"})
    EXPECT_THAT(regex_error(pattern), HasSubstr("unknown extension (?")) << pattern;
  EXPECT_GOLDEN(regex_error(text));
  EXPECT_TRUE(search("(?i)(?s)A.", "a\n"));
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
