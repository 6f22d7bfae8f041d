// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/inspect_damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fp8/quant/names/model_names.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;

quant::ModuleDamage module_of(const std::string& name, double db) {
  quant::ModuleDamage m;
  m.name = name;
  m.weight.count = 100;
  m.weight.signal = 1;
  m.weight.noise = std::pow(10.0, -db / 10);
  return m;
}

TEST(DamageSentence, SaysWhatToDo) {
  EXPECT_EQ(damage_sentence({module_of("a", 31.0), module_of("b", 32.5)}),
            "2 modules, all within 1.5 dB (31.0 to 32.5); nothing to exclude");
  EXPECT_EQ(damage_sentence({module_of("a", 18.0), module_of("b", 32.5)}),
            "2 modules from 18.0 to 32.5 dB; 1 below 25 dB, the worst is a: see --exclude");
  auto clipped = module_of("a", 31);
  clipped.weight.saturated = 3;
  EXPECT_THAT(damage_sentence({clipped}), HasSubstr("; 1 saturate"));
  clipped.weight.signal = 0;
  EXPECT_EQ(damage_sentence({clipped}),
            "1 modules, whose SQNR --reference DIR, what they were made of, tells; 1 saturate");
  auto same = module_of("a", 31);
  same.weight.noise = 0;
  EXPECT_EQ(damage_sentence({same}), "1 modules, all the same as in the reference");
  EXPECT_EQ(damage_sentence({}), "no module is in fp8");
}

TEST(DamageTable, NamesSayWeightOrInput) {
  auto m = module_of("a", 31);
  EXPECT_THAT(damage_table({m, m}, 1, 0), HasSubstr("module  weight SQNR dB  weight saturated  weight underflow"));
  m.input = m.weight;
  EXPECT_THAT(damage_table({m}, 1, 0), HasSubstr("module  module SQNR dB  weight SQNR dB  input SQNR dB"));
}

TEST(KeptTable, FoldsByNameAndReason) {
  const auto text =
      kept_table({{"layers.0.gate", "a router"}, {"layers.1.gate", "a router"}, {"lm_head", "a head"}}, 0);
  EXPECT_EQ(text,
            "kept in high precision  modules  why\n"
            "layers.*.gate                 2  a router\n"
            "lm_head                       1  a head\n");
  EXPECT_EQ(kept_table({}, 0), "");
}

}  // namespace

namespace {

TEST(PlanTable, PartsThatAreNumbersFold) {
  EXPECT_EQ(quant::folded_name("model.layers.12.mlp.experts.3.w1"), "model.layers.*.mlp.experts.*.w1");
  EXPECT_EQ(quant::folded_name("0.fc1"), "*.fc1");
  EXPECT_EQ(quant::folded_name("lm_head"), "lm_head");
  EXPECT_EQ(quant::folded_name("encoder.layer1.conv2"), "encoder.layer1.conv2") << "whole parts only";
  EXPECT_EQ(quant::folded_name(""), "");
}

TEST(PlanTable, LinesHoldWhatHasOneFate) {
  quant::CheckpointReport report;
  report.quantized = {
      {"layers.0.q", "channel"}, {"layers.0.k", "tensor"}, {"layers.1.q", "channel"}, {"layers.1.k", "channel"}};
  report.skipped = {{"layers.2.q", "excluded"}, {"lm_head", "kept"}};
  const auto lines = plan_lines(report);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].name, "layers.*.q");
  EXPECT_EQ(lines[0].modules, (std::vector<std::string>{"layers.0.q", "layers.1.q"}));
  EXPECT_EQ(lines[1].name, "layers.0.k") << "alone of its fate: by its own name";
  EXPECT_EQ(lines[2].name, "layers.1.k");
  EXPECT_EQ(lines[3].name, "layers.2.q");
  EXPECT_EQ(lines[3].scheme, "");
  EXPECT_EQ(lines[4].reason, "kept");
}

}  // namespace
}  // namespace fp8::commands
