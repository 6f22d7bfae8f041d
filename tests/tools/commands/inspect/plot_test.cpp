// SPDX-License-Identifier: Apache-2.0
// Pictures as SVG.
#include "fp8/tools/commands/inspect/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
}  // namespace fp8::commands
