// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scheme/underflow.h"

#include <cmath>
#include <cstdio>

#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant {
namespace {

/// The largest magnitude that is rounded to zero: half of the smallest positive code, a tie that goes to the even one.
float largest_lost(recipes::Format format) { return kernels::decode_table(format)[1] / 2; }

}  // namespace

Underflow underflow_of_codes(const void* values, recipes::FloatType type, std::int64_t n, const std::uint8_t* codes) {
  std::int64_t zero_codes = 0, zeros = 0;
  for (std::int64_t i = 0; i < n; ++i) zero_codes += (codes[i] & 0x7f) == 0 ? 1 : 0;
  if (4 * zero_codes <= n) return {zero_codes, n};
  for (std::int64_t i = 0; i < n; ++i) zeros += kernels::load_element(values, type, i) == 0.0f ? 1 : 0;
  return {zero_codes - zeros, n - zeros};
}

Underflow underflow_of_scale(const void* values, recipes::FloatType type, std::int64_t n, float scale,
                             recipes::Format format) {
  const float lost = largest_lost(format);
  Underflow out;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(kernels::load_element(values, type, i));
    if (magnitude == 0.0f) continue;
    ++out.values;
    out.lost += magnitude * scale <= lost ? 1 : 0;
  }
  return out;
}

bool loses_most(float amax, float scale, recipes::Format format) {
  return amax > 0 && amax * scale <= 4 * largest_lost(format);
}

void UnderflowReport::add(const std::string& module, const Underflow& underflow) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++modules_;
  if (!underflow.most()) return;
  ++losing_;
  if (underflow.share() < worst_share_ || (underflow.share() == worst_share_ && !worst_.empty() && worst_ < module))
    return;
  worst_share_ = underflow.share();
  worst_ = module;
}

std::vector<std::string> UnderflowReport::warnings(const std::string& scale_method, const char* what) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (losing_ == 0) return {};
  char share[32];
  std::snprintf(share, sizeof share, "%.3g", 100 * worst_share_);
  return {"scale method " + scale_method + ": in " + std::to_string(losing_) + " of " + std::to_string(modules_) +
          " modules most " + what + " become zero in fp8 (the worst: " + worst_ + ", " + share +
          " % of those that are not zero); the scales are too large for them: take a method that " +
          "follows amax per tensor or channel, or leave these modules in high precision"};
}

}  // namespace fp8::quant
