// SPDX-License-Identifier: Apache-2.0
// Loss curves as one SVG picture: per run a faint line of every step, a smoothed one, and a dot per evaluation.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fp8::commands {

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
