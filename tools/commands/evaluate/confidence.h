// SPDX-License-Identifier: Apache-2.0
// How far a mean over chunks of a text may be from that over all such texts. No torch here.
//
//   mean  = sum x_i / sum n_i                                            x_i: of chunk i, a sum over n_i tokens
//   error = sqrt(C / (C - 1) sum (x_i - mean n_i)^2) / sum n_i           standard error, of C chunks
//   [mean - t error, mean + t error]                                     95 %; t: Student's, of C - 1
//
// Chunks count as drawn independently; neighbours of one text are alike, so that other texts differ more.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace fp8::commands {

using Interval = std::array<double, 2>;

struct Estimate {
  double mean = 0;
  std::optional<double> error = {};       ///< none of a single chunk
  std::optional<Interval> interval = {};  ///< the same
};

/// sums, counts: x_i and n_i, as many of the one as of the other.
Estimate estimate(const std::vector<double>& sums, const std::vector<double>& counts);

/// The quantile of Student's distribution that 2.5 % lie above; freedom: 1 or more.
double student_t(std::int64_t freedom);

}  // namespace fp8::commands
