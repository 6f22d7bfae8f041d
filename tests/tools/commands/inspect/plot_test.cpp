// SPDX-License-Identifier: Apache-2.0
// Pictures as SVG.
#include "fp8/tools/commands/inspect/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fp8/runtime/io/base/file.h"

namespace fp8::commands {
namespace {

using ::testing::HasSubstr;

TEST(LayerOf, IsTheNumberBehindLayers) {
  using Place = std::pair<std::int64_t, std::string>;
  EXPECT_EQ(layer_of("model.layers.12.self_attn.q_proj"), Place(12, "self_attn.q_proj"));
  EXPECT_EQ(layer_of("transformer.h.0.mlp.experts.3.w1"), Place(0, "mlp.experts.*.w1"));
  EXPECT_EQ(layer_of("layers.3"), Place(-1, "layers.3")) << "no module of a layer";
  for (const char* name : {"lm_head", "", "layers", "layers.x.q", "head.1.q", "layers..q"})
    EXPECT_EQ(layer_of(name), Place(-1, name));
}

TEST(Picture, AsSvg) {
  const Picture picture{20, 10, {{2, 1, 5, 3, {255, 0, 0}}}, {{0, 9, 20, 9}}, {{1, 8, "I<"}}};
  const auto svg = svg_of(picture);
  EXPECT_THAT(svg, HasSubstr("<rect x=\"2.0\" y=\"1.0\" width=\"5.0\" height=\"3.0\" fill=\"#ff0000\"/>"));
  EXPECT_THAT(svg, HasSubstr(">I&lt;</text>"));
}

io::Json report() {
  return io::Json::parse(R"({"kind": "damage", "title": "<m>", "summary": "s", "modules": [
    {"name": "layers.0.q", "sqnr_db": 31.5, "weight": {"amax": 2, "sqnr_db": 31.5, "largest": 2, "smallest": 0.01,
     "octaves": {"first_exponent": -3, "counts": [1, 0, 100]}}, "input": null},
    {"name": "layers.1.q", "sqnr_db": 19.5, "weight": null, "input": null},
    {"name": "lm_head", "sqnr_db": 27, "weight": null, "input": null}]})");
}

TEST(HeatMap, HasACellForEachLayer) {
  const auto picture = heat_map(report());
  EXPECT_EQ(picture.rectangles.size(), 3u + 4u);  // and a legend
  const auto svg = svg_of(picture);
  for (const char* text : {">31.5</text>", ">19.5</text>", ">below 20 dB</text>", "&lt;m&gt;"})
    EXPECT_THAT(svg, HasSubstr(text));
  for (const auto& t : picture.texts) EXPECT_LE(t.x, picture.width);
  auto none = report();
  none["modules"] = io::Json::array();
  EXPECT_THROW(heat_map(none), io::Error);
}

TEST(Histogram, OfOneModule) {
  const auto picture = histogram(report(), "layers.0.q");
  EXPECT_EQ(picture.rectangles.size(), 2u);  // empty octaves have no bar
  EXPECT_EQ(picture.lines.size(), 3u);       // the axis, smallest and largest
  EXPECT_THROW(histogram(report(), "gone"), io::Error);
  EXPECT_THROW(histogram(report(), "lm_head"), io::Error);
}

}  // namespace

// Ticks against their definition, the picture's points against where they must lie, any text as text.

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
