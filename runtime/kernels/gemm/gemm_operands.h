// SPDX-License-Identifier: Apache-2.0
// Operands of a gemm that its kernels do not take as they are: activations in the order of a level, scales folded into
// values, panels of row-major weights, infinite and NaN codes.
#pragma once
#include <functional>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/gemm/gemm_kernels.h"

namespace fp8::kernels {

/// Packs rows [row0, row0 + rows) of args.a, converted exactly, into ceil(rows / tile_rows) tiles, tile_stride() bytes
/// apart; rows and k beyond the matrix become 0. Those of bf16 take BF16, E4M3 and E5M2 only (F32 and F16 would round).
/// Uses the threads of the pool when there is enough to do. largest [rows]: args.a_scale_inv, of groups, is folded in.
void pack_activations(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
                      void* out, const float* largest = nullptr);

// Scales that are powers of two, folded into the values that they scale, so that products sum on over all of K
// (GemmArgs::power_of_two_scales).
//
//   largest   of the scales of a row: stays outside, as the scale of that row's outputs
//   steps     largest / scale = 2^steps: a value of the group is a code's value / 2^steps
//   fold      what is taken from the bits of a finite bf16 other than 0, by a subtraction that saturates at 0: steps in
//             the place of the exponent, and a 1 for the mark that CodeTables::bf16_low_marked gives such values

inline constexpr std::uint16_t kFoldToZero = 0xFFFF;

/// NaN before infinity before finite ones, all of which are taken for positive.
inline float largest_scale(const float* scales, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_of(scales[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return float_of(largest);
}

/// Exponents from that of 2^-127 on.
inline std::uint16_t fold_of(float scale, float largest) {
  const auto exponent = [](float x) { return static_cast<int>(bits_of(x) >> 23 & 0xFF); };
  const int steps = exponent(largest) - exponent(scale);
  return scale == 0.0f || steps > kMostFoldSteps ? kFoldToZero : static_cast<std::uint16_t>(steps << 7 | 1);
}

/// A bf16 without mark.
inline std::uint16_t folded(std::uint16_t bf16, std::uint16_t fold) {
  const int magnitude = bf16 & 0x7FFF;
  if (magnitude == 0 || magnitude >= 0x7F80) return bf16;
  return fold == kFoldToZero ? 0 : static_cast<std::uint16_t>(bf16 - (fold & ~1));
}

// Row-major weights that several chunks of rows are multiplied with, packed once for all of them: a panel of channels
// at a time, so that scratch does not grow with n.

/// run(part) for parts of a product with a row-major weight and k > 0: the same rows, and channels of which the weight
/// lies packed in scratch of the calling thread, until run returns. Packs on the threads of the pool.
void for_panels(const GemmArgs& args, const GemmKernels& kernels, const std::function<void(const GemmArgs&)>& run);

// Products with Gaudi2's E4M3, whose codes from 0x78 on are infinity and NaN. The kernels of all levels read codes as
// ocp does, which is the same below 0x78. Every output that meets such a code is infinity or NaN whatever the other
// factors are: these outputs are computed here, one by one in f32, and written over what the kernels made of them.
//
// No cast to Gaudi2's E4M3 writes such codes, so all this is a look at the codes of both operands.

class NonFiniteOutputs {
 public:
  /// Finds the rows of a and of w that hold such codes and computes their outputs, from y as it is before the product.
  explicit NonFiniteOutputs(const GemmArgs& args);
  void write() const;

 private:
  float output(std::int64_t row, std::int64_t channel) const;

  const GemmArgs& args_;
  std::vector<std::int64_t> rows_, channels_;
  std::vector<float> of_rows_, of_channels_;  ///< [rows_, n] and [m, channels_]
};

}  // namespace fp8::kernels
