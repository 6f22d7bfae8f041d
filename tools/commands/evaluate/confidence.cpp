// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/confidence.h"

#include <cmath>
#include <iterator>
#include <numeric>

namespace fp8::commands {

double student_t(std::int64_t freedom) {
  constexpr double kNormal = 1.959963984540054;  // the same quantile of the normal distribution
  constexpr double kFew[] = {12.706204736174694, 4.302652729749464, 3.182446305284263};
  if (freedom <= std::ssize(kFew)) return kFew[freedom - 1];
  // Abramowitz and Stegun 26.7.5.
  const double n = static_cast<double>(freedom), z = kNormal, z2 = z * z;
  const double g1 = (z2 + 1) * z / 4, g2 = ((5 * z2 + 16) * z2 + 3) * z / 96,
               g3 = (((3 * z2 + 19) * z2 + 17) * z2 - 15) * z / 384,
               g4 = ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) * z / 92160;
  return z + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n;
}

Estimate estimate(const std::vector<double>& sums, const std::vector<double>& counts) {
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  Estimate e{std::accumulate(sums.begin(), sums.end(), 0.0) / all};
  const std::size_t chunks = sums.size();
  if (chunks < 2) return e;
  double squares = 0;
  for (std::size_t i = 0; i < chunks; ++i) squares += std::pow(sums[i] - e.mean * counts[i], 2);
  const double c = static_cast<double>(chunks);
  e.error = std::sqrt(c / (c - 1) * squares) / all;
  const double reach = student_t(static_cast<std::int64_t>(chunks) - 1) * *e.error;
  e.interval = {e.mean - reach, e.mean + reach};
  return e;
}

}  // namespace fp8::commands
