// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/inspect/plot.h"

namespace fp8::commands {
namespace {

using Points = std::vector<std::pair<std::int64_t, double>>;

constexpr double kWidth = 900, kHeight = 420, kLeft = 62, kRight = 20, kTop = 18, kBottom = 46;
constexpr std::size_t kMostPoints = 600;
constexpr const char* kColors[] = {"#3b82c4", "#d0602e", "#2f9e63", "#9a5fc0", "#b8952a", "#c2477f"};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  /// Never empty and never of width 0.
  Range usable() const {
    if (!(low <= high)) return {0, 1};
    const double pad = high > low ? 0 : std::max(1.0, std::abs(low)) * 0.05;
    const Range range{low - pad, high + pad};
    io::ensure(range.low < range.high, "a range of some width");
    return range;
  }
};

Points finite(const Points& points) {
  Points kept;
  for (const auto& p : points)
    if (std::isfinite(p.second)) kept.push_back(p);
  return kept;
}

/// Means of at most kMostPoints stretches of equal length.
Points thinned(const Points& points) {
  if (points.size() <= kMostPoints) return points;
  Points out;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const auto begin = i * points.size() / kMostPoints, end = (i + 1) * points.size() / kMostPoints;
    double sum = 0;
    for (auto k = begin; k < end; ++k) sum += points[k].second;
    out.emplace_back(points[(begin + end - 1) / 2].first, sum / static_cast<double>(end - begin));
  }
  return out;
}

/// Mean of the points within a fortieth of the curve on either side.
Points smoothed(const Points& points) {
  const auto reach = static_cast<std::ptrdiff_t>(points.size() / 40);
  Points out;
  for (std::ptrdiff_t i = 0; i < std::ssize(points); ++i) {
    const auto near = std::min({reach, i, std::ssize(points) - 1 - i});
    double sum = 0;
    for (auto k = i - near; k <= i + near; ++k) sum += points[static_cast<std::size_t>(k)].second;
    out.emplace_back(points[static_cast<std::size_t>(i)].first, sum / static_cast<double>(2 * near + 1));
  }
  return out;
}

struct Axes {
  Range x, y;
  double px(double v) const { return kLeft + (v - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double py(double v) const { return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom); }
};

std::string polyline(const Points& points, const Axes& axes, const char* color, double width, double opacity) {
  std::string path;
  for (const auto& [step, loss] : points)
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", axes.px(static_cast<double>(step)), axes.py(loss));
  return fmt::format(
      "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" points=\"{}\"/>\n", color, width,
      opacity, path);
}

std::string grid(const Axes& axes, const std::string& what) {
  std::string svg;
  for (const double v : axis_ticks(axes.y.low, axes.y.high, 6))
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#8886\"/><text x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:.6g}</text>\n",
        kLeft, kWidth - kRight, axes.py(v), axes.py(v), kLeft - 6, axes.py(v) + 4, v);
  for (const double v : axis_ticks(axes.x.low, axes.x.high, 8))
    svg += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\" stroke=\"#8886\"/><text x=\"{:.1f}\" y=\"{}\" "
        "text-anchor=\"middle\">{:.10g}</text>\n",
        axes.px(v), axes.px(v), kHeight - kBottom, kHeight - kBottom + 4, axes.px(v), kHeight - kBottom + 18, v);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text><text x=\"14\" y=\"{}\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 14 {})\">{}</text>\n",
      kWidth / 2, kHeight - 8, kHeight / 2, kHeight / 2, xml_text(what));
  return svg;
}

}  // namespace

std::string xml_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // control characters are not XML
    }
  }
  return out;
}

std::vector<double> axis_ticks(double low, double high, int about) {
  if (!(high > low) || !std::isfinite(high - low)) return {};
  const double raw = (high - low) / about, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double k = std::ceil(low / step); k * step <= high; ++k) ticks.push_back(k * step);
  return ticks;
}

std::string loss_svg(const std::vector<LossCurve>& curves, const std::string& what) {
  Range x, y;
  for (const auto& curve : curves)
    for (const auto* points : {&curve.steps, &curve.evaluations})
      for (const auto& [step, loss] : finite(*points)) {
        x.add(static_cast<double>(step));
        y.add(loss);
      }
  const Axes axes{x.usable(), y.usable()};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#808080\">\n",
      kWidth, kHeight);
  svg += grid(axes, what);
  double legend = kTop + 12;
  for (std::size_t i = 0; i < curves.size(); ++i, legend += 18) {
    const char* color = kColors[i % std::size(kColors)];
    const auto points = thinned(finite(curves[i].steps));
    svg += polyline(points, axes, color, 1, 0.3) + polyline(smoothed(points), axes, color, 1.8, 1);
    for (const auto& [step, loss] : finite(curves[i].evaluations))
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: eval {:.5f} at step "
          "{}</title></circle>\n",
          axes.px(static_cast<double>(step)), axes.py(loss), color, xml_text(curves[i].name), loss, step);
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\" stroke=\"{3}\" stroke-width=\"2.5\"/><text x=\"{4}\" "
        "y=\"{5}\" text-anchor=\"end\">{6}</text>\n",
        kWidth - kRight - 24, kWidth - kRight, legend - 4, color, kWidth - kRight - 30, legend,
        xml_text(curves[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace fp8::commands
