// SPDX-License-Identifier: Apache-2.0
// Clipping thresholds from histograms. histogram.h has the formulas and where they come from.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "fp8/measure/observers/histogram.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"

namespace fp8::measure {
namespace {

constexpr int kCandidates = 256;
constexpr int kPointsPerBin = 4;  // a bin's mean error is taken at so many points of it
constexpr double kUnseen = 4;  // other data has more large values than the calibration saw: clipped ones count so often

/// Bins in use, from the first: the largest value lies in the last of them.
int used_bins(const Histogram& h) {
  return std::min(h.bins(), static_cast<int>(h.amax() * (h.bins() / h.range())) + 1);
}

/// Codes of `values` cast with a threshold, and the values that they stand for.
class Caster {
 public:
  explicit Caster(const Fp8Target& target) : target_(target) {}

  void cast(const std::vector<float>& values, float threshold) {
    const auto n = static_cast<std::int64_t>(values.size());
    codes_.resize(values.size());
    decoded_.resize(values.size());
    const float scale_inv = std::max(threshold / target_.max, std::numeric_limits<float>::min());
    const float scale = 1.0f / scale_inv;
    kernels::cast_to_fp8(kernels::dense_cast(values.data(), 1, n, codes_.data(), target_.format, target_.max, &scale));
    kernels::DecodeArgs decode;
    decode.codes = codes_.data();
    decode.rows = 1, decode.cols = n;
    decode.format = target_.format;
    decode.y = decoded_.data(), decode.scale_inv = &scale_inv;
    kernels::decode_from_fp8(decode);
  }
  const std::vector<std::uint8_t>& codes() const { return codes_; }
  const std::vector<float>& decoded() const { return decoded_; }

 private:
  Fp8Target target_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> decoded_;
};

/// E(t) of histogram.h, times the number of values.
class SquaredError {
 public:
  SquaredError(const Histogram& h, const Fp8Target& target) : caster_(target) {
    for (int i = 0; i < h.bins(); ++i) {
      if (h.counts()[i] == 0) continue;
      const double low = h.edge(i), width = std::min<double>(h.edge(i + 1), h.amax()) - low;
      for (int k = 0; k < kPointsPerBin; ++k) {
        points_.push_back(static_cast<float>(low + width * (k + 0.5) / kPointsPerBin));
        weights_.push_back(static_cast<double>(h.counts()[i]) / kPointsPerBin);
      }
    }
  }

  /// Values above the threshold count `clipped` times.
  double at(float threshold, double clipped = 1) {
    caster_.cast(points_, threshold);
    double error = 0;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const double difference = static_cast<double>(points_[i]) - caster_.decoded()[i];
      error += (points_[i] > threshold ? clipped : 1.0) * weights_[i] * difference * difference;
    }
    return error;
  }

 private:
  std::vector<float> points_;
  std::vector<double> weights_;
  Caster caster_;
};

/// The k-th of the thresholds that are tried; the last is amax.
float candidate(const Histogram& h, int k) {
  return static_cast<float>(static_cast<double>(h.amax()) * k / kCandidates);
}

/// KL(P || Q) of the first `below` bins; infinite where Q has nothing and P something.
double divergence(const Histogram& h, int below, int used, const std::vector<std::uint8_t>& codes) {
  const auto& counts = h.counts();
  double outliers = 0, inside = 0;
  for (int i = 0; i < used; ++i) (i < below ? inside : outliers) += static_cast<double>(counts[i]);
  if (inside == 0) return std::numeric_limits<double>::infinity();
  double kl = 0;
  for (int begin = 0, end; begin < below; begin = end) {  // bins of one code: magnitudes rise, so do codes
    double sum = 0;
    int held = 0;
    for (end = begin; end < below && codes[end] == codes[begin]; ++end) {
      sum += static_cast<double>(counts[end]);
      held += counts[end] != 0;
    }
    const double q = held > 0 ? sum / held / inside : 0.0;
    for (int i = begin; i < end; ++i) {
      const double p = (static_cast<double>(counts[i]) + (i == below - 1 ? outliers : 0.0)) / (inside + outliers);
      if (p == 0.0) continue;
      if (counts[i] == 0) return std::numeric_limits<double>::infinity();
      kl += p * std::log(p / q);
    }
  }
  return kl;
}

}  // namespace

float percentile_threshold(const Histogram& h, double percent) {
  if (!(percent > 0.0 && percent <= 100.0)) {
    throw std::invalid_argument("percentile: found " + std::to_string(percent) + ", allowed: above 0, at most 100");
  }
  if (h.amax() == 0.0f) return 0.0f;
  // 1e-12: 99.99 % of 10000 values are 9999, whatever the product's last bit.
  const double wanted = percent / 100.0 * static_cast<double>(h.total()) * (1.0 - 1e-12);
  double seen = static_cast<double>(h.zeros());
  for (int i = 0; i < h.bins(); ++i) {
    if (h.counts()[i] == 0) continue;  // a threshold of 0 would clip everything: it stays above the lowest value
    seen += static_cast<double>(h.counts()[i]);
    if (seen >= wanted) return std::min(static_cast<float>(h.edge(i + 1)), h.amax());
  }
  return h.amax();
}

float mse_threshold(const Histogram& h, const Fp8Target& target) {
  if (h.amax() == 0.0f) return 0.0f;
  SquaredError error(h, target);
  float best = h.amax();
  double least = std::numeric_limits<double>::infinity();
  for (int k = kCandidates; k >= 1; --k) {
    const float threshold = candidate(h, k);
    const double found = error.at(threshold);
    if (found < least) least = found, best = threshold;
  }
  return best;
}

float affordable_threshold(const Histogram& h, float threshold, const Fp8Target& target) {
  if (!(threshold < h.amax())) return h.amax();
  SquaredError error(h, target);
  const double allowed = error.at(h.amax());
  if (error.at(threshold, kUnseen) <= allowed) return threshold;
  for (int k = 1; k < kCandidates; ++k) {
    if (candidate(h, k) > threshold && error.at(candidate(h, k), kUnseen) <= allowed) return candidate(h, k);
  }
  return h.amax();
}

float kl_threshold(const Histogram& h, const Fp8Target& target) {
  if (h.amax() == 0.0f) return 0.0f;
  const int used = used_bins(h);
  std::vector<float> centers;
  for (int i = 0; i < used; ++i) centers.push_back(static_cast<float>((h.edge(i) + h.edge(i + 1)) / 2));
  Caster caster(target);
  float best = h.amax();
  double least = std::numeric_limits<double>::infinity();
  const int candidates = std::min(kCandidates, used);
  for (int k = candidates; k >= 1; --k) {
    const int below = static_cast<int>(static_cast<std::int64_t>(used) * k / candidates);
    const float threshold = std::min(static_cast<float>(h.edge(below)), h.amax());
    caster.cast(centers, threshold);
    const double kl = divergence(h, below, used, caster.codes());
    if (kl < least) least = kl, best = threshold;
  }
  return best;
}

}  // namespace fp8::measure
