// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/name_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"

namespace fp8::configs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  try {
    NamePatterns({"fine", "a(b"}, "--exclude");
    FAIL() << "no error";
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--exclude: pattern 'a(b'"));
  }
  NamePatterns patterns;
  patterns.add("a", "key 'names[0]'");
  EXPECT_THROW(patterns.add("*", "key 'names[1]'"), io::Error);
  EXPECT_EQ(patterns.size(), 1u);
  EXPECT_EQ(patterns[0].pattern(), "a");
}

}  // namespace
}  // namespace fp8::configs
