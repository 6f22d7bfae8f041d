// SPDX-License-Identifier: Apache-2.0
// A histogram of magnitudes, and what a clipping threshold can be read off it. No torch here.
//
//   bin i of n holds |x| in [i, i + 1) * 2^e / n,    2^e the smallest power of two above the largest |x| so far
//
// When a larger |x| comes the range doubles and neighbouring bins are added up: floor(floor(v n / 2^e) / 2) is
// floor(v n / 2^(e+1)), so that nothing is lost by growing late. Hence the counts depend on the values alone: not on
// their order, on how they were divided into calls, nor on the order in which histograms are merged.
// Zeros are counted apart; they say nothing about a range.
#pragma once

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::measure {

class Histogram {
 public:
  static constexpr int kDefaultBins = 2048;

  /// Throws std::invalid_argument unless 16 <= bins <= 65536.
  explicit Histogram(int bins = kDefaultBins);

  /// n contiguous finite values.
  void add(const void* x, kernels::FloatType type, std::int64_t n);
  /// Throws std::invalid_argument for another number of bins.
  void merge(const Histogram& other);

  int bins() const { return static_cast<int>(counts_.size()); }
  float amax() const { return amax_; }  ///< exact
  std::uint64_t zeros() const { return zeros_; }
  std::uint64_t total() const { return total_; }  ///< zeros included
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double range() const;      ///< the upper end of the last bin, 2^e; 0 while there are only zeros
  double edge(int i) const;  ///< the lower end of bin i

  bool operator==(const Histogram&) const = default;

  /// {"bins", "exponent", "amax", "zeros", "counts": "3,,,1a"}: counts in hexadecimal, nothing for 0, none after the
  /// last. from_json throws io::Error; `where` stands in its messages.
  io::Json to_json() const;
  static Histogram from_json(const io::Json& json, const std::string& where);

 private:
  static constexpr int kNoExponent = -10000;  // no value other than zero so far

  void grow(int exponent);

  std::vector<std::uint64_t> counts_;
  std::uint64_t zeros_ = 0, total_ = 0;
  int exponent_ = kNoExponent;
  float amax_ = 0.0f;
};

/// The purpose of a threshold: the format that |x| is cast to, saturating at max, with scale_inv = threshold / max.
struct Fp8Target {
  kernels::Format format = kernels::Format::E4M3;
  float max = 448.0f;
};

/// The smallest upper end of a bin at or below which `percent` % of all values lie (zeros included), at most amax. So
/// the quantile itself is at most one bin lower. 0 < percent <= 100, else std::invalid_argument; 100 gives amax.
float percentile_threshold(const Histogram& h, double percent);

/// The threshold t that minimizes the expected squared error of casting,
///   E(t) = sum over bins of count * mean over the bin of (v - t/max * Q(min(v max/t, max)))^2,     Q: round to fp8
/// over 256 thresholds up to amax; of equal ones the largest. (Sung, Shin, Hwang: "Resiliency of deep neural networks
/// under quantization", 2015, choose the step size so for integers.)
float mse_threshold(const Histogram& h, const Fp8Target& target);

/// The threshold whose clipped and quantized distribution Q diverges least from the distribution P that it stands for,
///   KL(P || Q) = sum P log(P / Q)
/// P: the bins below t, what lies above added to the last of them. Q: the bins below t, those with one fp8 code made
/// equal where they hold anything. Over 256 thresholds up to amax; of equal ones the largest. (Migacz, "8-bit inference
/// with TensorRT", GTC 2017, with int8's equal steps; here the steps are those of fp8.)
float kl_threshold(const Histogram& h, const Fp8Target& target);

/// `threshold`, raised to the first of 256 up to amax that costs no more than amax does: E(t) <= E(amax), where values
/// above t count four times in E(t), since other data has more of them than the calibration saw. So clipping that takes
/// more from the few than it gives to the many is kept out of scales: a language model's rare large activations carry
/// much of what it knows.
float affordable_threshold(const Histogram& h, float threshold, const Fp8Target& target);

}  // namespace fp8::measure
