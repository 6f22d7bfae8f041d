// SPDX-License-Identifier: Apache-2.0
// Between amax.cpp and amax_simd.cpp. Magnitudes are compared as integers: bits of |x| sort like |x|, with infinity
// above every number and NaN above infinity, so one unsigned maximum finds the amax and says whether anything was not
// finite.
#pragma once
#include <atomic>
#include <cstdint>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

struct AmaxKernels {
  /// max of the magnitude bits of x[n], 32-bit or 16-bit elements.
  std::uint32_t (*of_32)(const std::uint32_t* x, std::int64_t n);
  std::uint16_t (*of_16)(const std::uint16_t* x, std::int64_t n);
  /// best[i] = max(best[i], magnitude bits of x[i]).
  void (*into_32)(const std::uint32_t* x, std::int64_t n, std::uint32_t* best);
  void (*into_16)(const std::uint16_t* x, std::int64_t n, std::uint16_t* best);
  /// best[g] = max of the magnitude bits of x[g * width, min(n, (g + 1) * width)), width >= 1.
  void (*groups_32)(const std::uint32_t* x, std::int64_t n, std::int64_t width, std::uint32_t* best);
  void (*groups_16)(const std::uint16_t* x, std::int64_t n, std::int64_t width, std::uint16_t* best);
};

const AmaxKernels& amax_kernels_in_force();

/// Magnitude bits of a 16-bit element -> those of the same number as f32.
inline std::uint32_t widen_bits(std::uint16_t bits, FloatType type) {
  return type == FloatType::BF16 ? static_cast<std::uint32_t>(bits) << 16 : bits_of(f16_to_f32(bits));
}

/// f32 magnitude bits of the amax of x[n].
inline std::uint32_t amax_of_run(const AmaxKernels& kernels, const void* x, FloatType type, std::int64_t n) {
  if (type == FloatType::F32) return kernels.of_32(static_cast<const std::uint32_t*>(x), n);
  return widen_bits(kernels.of_16(static_cast<const std::uint16_t*>(x), n), type);
}

/// Bits -> value; every NaN becomes the one quiet NaN.
inline float amax_value(std::uint32_t bits) { return float_of(bits > 0x7F800000u ? 0x7FC00000u : bits); }

/// The maximum over what several threads found.
class AmaxBits {
 public:
  void add(std::uint32_t bits) {
    std::uint32_t seen = bits_.load(std::memory_order_relaxed);
    while (bits > seen && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  std::uint32_t bits() const { return bits_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

}  // namespace fp8::kernels
