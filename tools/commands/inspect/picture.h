// SPDX-License-Identifier: Apache-2.0
// Pictures of rectangles, lines and short texts as SVG: what a heat map and a histogram need, and no more. No torch
// here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace fp8::commands
