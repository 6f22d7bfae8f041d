// SPDX-License-Identifier: Apache-2.0
// The arithmetic of carrying an fp8 weight from one checkpoint to another. Values in, values out; no files, no torch
// here.
//
//   other granularity, every new block inside an old one     codes stay, scale_inv is repeated: exact
//   448 -> 240 by range   code' = RNE(f32(f32(code * 240) / 448)), scale_inv' = f32(f32(scale_inv * 448) / 240)
//              by two     code' = RNE(code / 2), scale_inv' = 2 * scale_inv: exact but for odd codes below 2^-5
//   240 -> 448            codes and scale_inv stay: exact; by range: as above with 448 and 240 changed over
//
// `range` is what the vendor's conversion scripts compute. code' depends on the code alone, so it is a table of 256: in
// exact arithmetic code * scale_inv / scale_inv' is code * 240 / 448, and the only ties (+-14 * 2^-9, which becomes 7.5
// subnormal steps) are met exactly.
#pragma once

#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// range: by the ratio of the largest numbers, which keeps all of the new range in use. two: by 2, which keeps nearly
/// all codes' values.
enum class Rescale : std::uint8_t { range, two };
FP8_ENUM_NAMES(Rescale, {range, "448/240"}, {two, "2"});

/// The new values of E4M3 codes and of every scale that was made for them (weights, activations, key-value caches).
struct Rescaling {
  float times = 1, over = 1;           ///< of scale_inv
  std::array<std::uint8_t, 256> code;  ///< NaN codes stay NaN

  bool identity() const { return times == over; }
  void apply(std::uint8_t* codes, std::int64_t n) const;
  /// Throws std::invalid_argument naming `what` if the result is not finite or is 0.
  float scale_inv(float value, const std::string& what) const;
};

/// how: empty is `range` where the new dialect's largest number is smaller, and no change else. Throws
/// std::invalid_argument for `two` where codes would leave the range. E5M2 has one reading: the identity.
Rescaling rescaling(recipes::Format format, recipes::Dialect from, recipes::Dialect to, std::optional<Rescale> how);

/// True if every block of `to` lies inside one of `from`, so that repeating scales is all there is to do.
bool refines(const Scheme& from, const Scheme& to, std::int64_t rows, std::int64_t cols);

/// scale_inv of scale_grid(from) in the order of scale_grid(to). refines() holds.
std::vector<float> spread_scales(const std::vector<float>& scale_inv, const Scheme& from, const Scheme& to,
                                 std::int64_t rows, std::int64_t cols);

/// True for positive powers of two that E8M0 holds: 2^-127 to 2^127.
bool is_power_of_two(float value);

/// x [n] as y [n], each rounded to nearest even once (widening is exact). False if a finite value became infinite.
bool cast_floats(const void* x, recipes::FloatType from, std::int64_t n, recipes::FloatType to, void* y);

/// How far values are from those they stand for. Sums in f64; the same on any number of threads if pieces are added in
/// order.
struct Deviation {
  double largest = 0, largest_value = 0;  ///< max |a - b|, max |a|
  double squares = 0, value_squares = 0;  ///< sums of (a - b)^2, of a^2
  bool equal = true;                      ///< bit for bit, but that zeros of either sign are equal

  /// a: what should be; b: what is. n values each.
  void add(const float* a, const float* b, std::int64_t n);
  /// max |a - b| / max |a|; 0 where nothing differs.
  double max_error() const;
  /// sqrt(sum (a - b)^2 / sum a^2).
  double rms_error() const;
};

}  // namespace fp8::quant
