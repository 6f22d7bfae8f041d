// SPDX-License-Identifier: Apache-2.0
// Ticks against their definition, the picture's points against where they must lie, any text as text.
#include "fp8/tools/commands/inspect/loss_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(LossPlot, TicksAreRoundAndInside) {
  EXPECT_THAT(axis_ticks(0, 10, 5), ::testing::ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(1.03, 1.24, 4), ::testing::Pointwise(::testing::DoubleNear(1e-12), {1.05, 1.1, 1.15, 1.2}));
  for (const double high : {1e-7, 0.3, 5.6, 732.0, 1e9}) {
    const auto ticks = axis_ticks(0, high, 6);
    EXPECT_GE(ticks.size(), 4u) << high;
    EXPECT_LE(ticks.size(), 13u) << high;
    EXPECT_LE(ticks.back(), high);
  }
  EXPECT_TRUE(axis_ticks(1, 1, 5).empty());
  EXPECT_TRUE(axis_ticks(0, std::numeric_limits<double>::infinity(), 5).empty());
}

TEST(LossPlot, PointsLieWhereTheyBelong) {
  const auto svg = loss_svg({{"run", {{0, 4.0}, {10, 2.0}}, {{10, 3.0}}}});
  EXPECT_EQ(count(svg, "points=\"62.0,18.0 880.0,374.0\""),
            2u);  // the plot spans 62..880 x 18..374; two points are too few to smooth
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"880.0\" cy=\"196.0\""));
}

TEST(LossPlot, EmptyFlatAndBrokenCurves) {
  EXPECT_THAT(loss_svg({}), HasSubstr("</svg>"));
  EXPECT_THAT(loss_svg({{"none", {}, {}}}), HasSubstr("none"));
  const auto flat = loss_svg({{"flat", {{1, 2.0}, {2, 2.0}}, {}}, {"one", {{1, 2.0}}, {}}});
  EXPECT_THAT(flat, Not(HasSubstr("nan")));
  EXPECT_THAT(flat, Not(HasSubstr("inf")));
  const auto broken =
      loss_svg({{"gaps", {{1, 2.0}, {2, std::nan("")}, {3, 1.0}, {4, std::numeric_limits<double>::infinity()}}, {}}});
  EXPECT_THAT(broken, Not(HasSubstr("nan")));
  EXPECT_THAT(broken, Not(HasSubstr("inf")));
}

TEST(LossPlot, LongCurvesAreThinned) {
  LossCurve curve{"long"};
  for (int i = 0; i < 100000; ++i) curve.steps.emplace_back(i, 5.0 / (1 + i));
  EXPECT_LT(loss_svg({curve}).size(), 40000u);
}

TEST(LossPlot, TextStaysText) {
  const auto svg = loss_svg({{"<script>\"&'\n", {{1, 1.0}}, {{1, 1.0}}}});
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(count(svg, "&lt;script&gt;&quot;&amp;&#39; "), 2u);
}

}  // namespace
}  // namespace fp8::commands
