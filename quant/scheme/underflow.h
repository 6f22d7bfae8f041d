// SPDX-License-Identifier: Apache-2.0
// Scales that are too large for what they scale: values that are not zero and become zero in fp8. A method that does
// not look at the tensor (hw_aligned_single_scale), or one far outlier, can lose most of it, and nothing else would say
// so. No torch here.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// Of the values that are not zero, how many are lost.
struct Underflow {
  std::int64_t lost = 0, values = 0;

  void add(const Underflow& other) { lost += other.lost, values += other.values; }
  bool most() const { return 2 * lost > values; }
  double share() const { return values == 0 ? 0.0 : static_cast<double>(lost) / static_cast<double>(values); }
};

/// Of n values and the codes that they became. Where few codes are zero, zeros among the values are not told from lost
/// ones.
Underflow underflow_of_codes(const void* values, recipes::FloatType type, std::int64_t n, const std::uint8_t* codes);

/// Of n values under one static scale (multiplies into fp8).
Underflow underflow_of_scale(const void* values, recipes::FloatType type, std::int64_t n, float scale,
                             recipes::Format format);

/// True if `scale` loses most of a tensor of this amax, even if its values are normally distributed: their median is
/// then less than a quarter of the amax. Tails that are heavier lose more.
bool loses_most(float amax, float scale, recipes::Format format);

/// Collects tensors that lose most of their values; thread-safe.
class UnderflowReport {
 public:
  void add(const std::string& module, const Underflow& underflow);
  /// No line, or one: how many modules, the worst, the way out. what: "weights", "inputs".
  std::vector<std::string> warnings(const std::string& scale_method, const char* what) const;

 private:
  mutable std::mutex mutex_;
  std::int64_t modules_ = 0, losing_ = 0;
  std::string worst_;
  double worst_share_ = 0;
};

/// Shared by the modules of one conversion: the first whose input is lost at its first call is named, the others are
/// not.
struct InputWatch {
  std::atomic<bool> said{false};
};

}  // namespace fp8::quant
