// SPDX-License-Identifier: Apache-2.0
// The damage that casting to fp8 does to a tensor: how much of it saturates or underflows, and how far the values that
// come back are from those that went in. No torch here.
//
//   x^   = code * scale_inv
//   SQNR = 10 log10(sum x^2 / sum (x - x^)^2)      in dB, f64 sums; infinite when nothing changed
//
// Of a product y = x . w^T with independent rounding errors the relative noise powers add, so a module's SQNR is
// estimated as
//
//   1 / (10^(-SQNR_w / 10) + 10^(-SQNR_x / 10))    in dB; the lower, the noisier its output
//
// The loss of the model (KL divergence) also depends on how it uses the output: modules rank differently by it.
#pragma once

#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

struct CastDamage {
  /// octaves[i] counts 2^(i + kFirstExponent) <= |x| < 2^(i + 1 + kFirstExponent); what lies beyond either end counts
  /// there.
  static constexpr int kOctaves = 64, kFirstExponent = -48;

  float amax = 0;  ///< of the unscaled tensor
  std::int64_t count = 0, zeros = 0;
  std::int64_t saturated = 0;    ///< more than 2^-8 beyond the largest value that the scale leaves room for
  std::int64_t underflow = 0;    ///< not zero, and cast to zero
  double signal = 0, noise = 0;  ///< sum x^2, sum (x - x^)^2
  std::array<std::int64_t, kOctaves> octaves{};

  void merge(const CastDamage& other);
  double saturation_share() const { return share(saturated); }
  double underflow_share() const { return share(underflow); }
  double sqnr_db() const;

 private:
  double share(std::int64_t n) const { return count == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(count); }
};

/// Noise of both operands together, as above. Infinite if both are.
double combined_sqnr_db(double weight_db, double input_db);

/// Casts rows of a weight, [rows, cols] dense in `type`, as cast_weight_rows() does and looks at the result. scales:
/// one value, or one per row. The same numbers for any thread count.
CastDamage weight_damage(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                         const WeightScales& scales, const Scheme& scheme);

/// As above, for an activation [rows, cols], with the scheme's static scale or one per row; nothing but amax and the
/// histogram where activations stay in high precision.
CastDamage input_damage(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                        const Scheme& scheme);

/// x [rows, cols] against what came back of it. scales, scheme: what it went through, with saturated values counted;
/// null: none are.
CastDamage compare_cast(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                        const float* decoded, const WeightScales* scales = nullptr, const Scheme* scheme = nullptr);

/// Relative RMS error of rounding values that a scale fits, their magnitudes spread evenly over an octave [1, 2), with
/// m bits of mantissa: 2^-m sqrt(ln 2 / 18), 2.5 % for E4M3, 4.9 % for E5M2.
double expected_rounding(recipes::Format format);

/// One module's weight and, when data was run, its input.
struct ModuleDamage {
  std::string name, type, scheme;
  float weight_scale_inv = 0;            ///< the largest, of per-channel scales
  std::optional<float> input_scale_inv;  ///< static scales only
  CastDamage weight;
  std::optional<CastDamage> input;
  float fp8_max = 0, fp8_min = 0;  ///< largest and smallest positive value of the format
  double sqnr_db() const;

  /// name, type and what the scheme says; damage still to be taken.
  static ModuleDamage of(std::string name, std::string type, const Scheme& scheme,
                         const std::vector<float>& weight_scale_inv);
};

/// The most damaged first; equal ones by what saturates, then by name.
void sort_by_damage(std::vector<ModuleDamage>& modules);

}  // namespace fp8::quant
