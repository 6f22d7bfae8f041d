// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect --plot`: one picture of what the page of inspect.h shows.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/json/json.h"

// Pictures of rectangles, lines and short texts as SVG: what a heat map and a histogram need, and no more. No torch
// here.

namespace fp8::commands {

struct Rgb {
  std::uint8_t r = 0, g = 0, b = 0;
};

enum class Anchor : std::uint8_t { start, middle, end };

/// On white. Coordinates from the left upper corner, in pixels.
struct Picture {
  struct Rectangle {
    double x = 0, y = 0, width = 0, height = 0;
    Rgb color;
  };
  /// Across or down.
  struct Line {
    double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
    bool dashed = false;
  };
  /// y: of the line that letters stand on.
  struct Text {
    double x = 0, y = 0;
    std::string text;
    Anchor anchor = Anchor::start;
    Rgb color = {};
  };

  double width = 0, height = 0;
  std::vector<Rectangle> rectangles = {};
  std::vector<Line> lines = {};
  std::vector<Text> texts = {};
};

/// How wide a text is at most.
double text_width(const std::string& text);

/// A complete <svg> element; any text is shown as text.
std::string svg_of(const Picture& picture);

/// svg_of() as a file, atomically.
void write_picture(const std::filesystem::path& file, const Picture& picture);

/// The layer that a module's name has a number of, and what it is called there: {3, "self_attn.q_proj"}; -1 and the
/// whole name outside of layers. Numbers in the rest are folded: {3, "mlp.experts.*.up_proj"}.
std::pair<std::int64_t, std::string> layer_of(const std::string& module);

/// Layers across, modules down, of a report of kind "damage" (SQNR in dB, or without one saturation) or "measurement"
/// (amax of the inputs, of the weights where there are none); of folded modules the worst. Throws io::Error where no
/// module has that number.
Picture heat_map(const io::Json& report);

/// Of one module of a report of kind "damage": its values per power of two and what fp8 can hold. Throws io::Error for
/// a name that the report has not, or a module without a histogram.
Picture histogram(const io::Json& report, const std::string& module);

// Loss curves as one SVG picture: per run a faint line of every step, a smoothed one, and a dot per evaluation.

/// Of losses, or of another number of each step.
struct LossCurve {
  std::string name;  ///< any text
  std::vector<std::pair<std::int64_t, double>> steps =
      {};  ///< (step, loss), ascending; points that are not finite are left out
  std::vector<std::pair<std::int64_t, double>> evaluations = {};
};

/// Complete <svg> element, 900 x 420, its colours legible on white and on black. Curves of more than 600 steps are
/// drawn as means of equal stretches. Curves may be empty. what: the number's name and unit, beside its axis.
std::string loss_svg(const std::vector<LossCurve>& curves, const std::string& what = "loss (nats per token)");

/// Round numbers that divide [low, high] into `about` parts or so: steps of 1, 2 or 5 times a power of ten, ascending,
/// within the range.
std::vector<double> axis_ticks(double low, double high, int about);

/// The text with & < > " ' as references.
std::string xml_text(const std::string& text);

}  // namespace fp8::commands
