// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/plan_table.h"

#include <gtest/gtest.h>

#include "fp8/quant/names/model_names.h"

namespace fp8::commands {
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
