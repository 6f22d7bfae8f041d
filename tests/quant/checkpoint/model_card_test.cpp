// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/model_card.h"

#include "fp8/version.h"
#include "support/matchers.h"

namespace fp8::quant {
namespace {

CardFacts facts() {
  return {.source = "org/model",
          .form = "compressed-tensors",
          .scheme = "E4M3 channel weights",
          .how = "quantized",
          .modules = 28,
          .kept = {{"lm_head", "a head"}, {"layers.0.gate", "a router"}, {"layers.1.gate", "a router"}},
          .source_bytes = 4'000'000,
          .weights_bytes = 3'000'000};
}

std::string front_of(const std::string& card) { return card.substr(0, card.find("\n---\n", 4) + 5); }

TEST(ModelCard, OfAModelWithoutOne) {
  const auto card = model_card("", facts());
  EXPECT_EQ(front_of(card), "---\nbase_model: org/model\nbase_model_relation: quantized\nquantized_by: fp8 " FP8_VERSION
                            "\nlibrary_name: transformers\ntags:\n- fp8\n- compressed-tensors\n---\n");
  for (const char* said :
       {"# org/model in fp8", "| scheme | E4M3 channel weights |", "| modules in fp8 | 28 |",
        "| in high precision: `lm_head` | a head |", "| in high precision: `layers.0.gate` and 1 more | a router |",
        "| size | 3,000,000 bytes, 75.0 % of the source |", "Not evaluated. `fp8 evaluate CHECKPOINT"})
    EXPECT_THAT(card, HasSubstr(said));
}

constexpr char kSource[] =
    "---\r\nlicense: other\nlicense_name: mine\nlanguage:\n- en\n- de\nbase_model: org/first\ntags: [a, \"b c\"]\n"
    "library_name: peft\nmodel-index:\n- name: x\n  results: []\n---\n\n# Model\n\nText --- with a line\n";

TEST(ModelCard, TheSourcesStays) {
  const auto card = model_card(kSource, facts());
  EXPECT_EQ(front_of(card),
            "---\nlicense: other\nlicense_name: mine\nlanguage:\n- en\n- de\nbase_model: org/model\ntags:\n- a\n- \"b "
            "c\"\n- fp8\n"
            "- compressed-tensors\nlibrary_name: peft\nbase_model_relation: quantized\nquantized_by: fp8 " FP8_VERSION
            "\n---\n");
  EXPECT_TRUE(card.ends_with("\n# Model\n\nText --- with a line\n"));
  EXPECT_THAT(card, HasSubstr("Results in the source's card are left out"));
  EXPECT_EQ(model_card(card, facts()), card) << "once more, the section stands there once";
}

TEST(ModelCard, OfAConversionNamesTheFirstModel) {
  auto converted = facts();
  converted.source = "model-fp8", converted.form = "fp8", converted.costs = {"Nothing."};
  const auto card = model_card(model_card(kSource, facts()), converted);
  EXPECT_THAT(front_of(card), HasSubstr("base_model: org/model\ntags:\n- a\n- \"b c\"\n- fp8\nlib"));
  EXPECT_THAT(card, AllOf(::testing::Not(HasSubstr("Not evaluated")), HasSubstr("## What it costs\n\nNothing.\n")));
  converted.form = "", converted.scheme = "bf16";
  const auto back = model_card(card, converted);
  EXPECT_THAT(front_of(back), ::testing::Not(HasSubstr("fp8\n")));
  EXPECT_THAT(back, HasSubstr("# model-fp8 in high precision"));
}

TEST(ModelCard, NamesAndTextsAreNoMarkup) {
  auto odd = facts();
  odd.source = "true";
  odd.kept = {{"a|b`c", "x\ny | z"}};
  const auto card = model_card("---\nno front matter", odd);
  EXPECT_THAT(card, AllOf(HasSubstr("base_model: \"true\"\n"), HasSubstr("`a/b'c` | x\\x0ay / z |")));
  EXPECT_TRUE(card.ends_with("\n---\nno front matter"));
  odd.source = "a: b";
  EXPECT_THAT(model_card("", odd), HasSubstr("base_model: \"a: b\"\n"));
}

}  // namespace
}  // namespace fp8::quant
