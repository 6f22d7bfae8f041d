// SPDX-License-Identifier: Apache-2.0
// amax -> scale_inv -> scale in our own convention (see scale.h).
#include "fp8/recipes/scale.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

namespace fp8::recipes {
namespace {

[[noreturn]] void reject(std::string_view name, const char* what, float found, const char* allowed) {
  std::ostringstream message;
  message << name << ": " << what << " is " << found << ", allowed: " << allowed;
  throw std::invalid_argument(message.str());
}

std::string element(std::string_view name, Eigen::Index i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

bool usable_amax(float amax) { return std::isfinite(amax) && amax >= 0.0f; }
bool usable_scale_inv(float scale_inv) {
  return scale_inv > 0.0f && std::isfinite(scale_inv) && std::isfinite(1.0f / scale_inv);
}

}  // namespace

float scale_inv_from_amax(float amax, float fp8_max, std::string_view name) {
  if (!(fp8_max > 0.0f) || !std::isfinite(fp8_max)) reject(name, "the format's maximum", fp8_max, "a finite value > 0");
  if (!usable_amax(amax)) reject(name, "amax", amax, "a finite value >= 0");
  if (amax == 0.0f) return 1.0f;
  return std::max(amax / fp8_max, kMinScaleInv);
}

Eigen::ArrayXf scale_inv_from_amax(const Eigen::ArrayXf& amax, float fp8_max, std::string_view name) {
  Eigen::ArrayXf result(amax.size());
  for (Eigen::Index i = 0; i < amax.size(); ++i) {
    if (!usable_amax(amax[i])) scale_inv_from_amax(amax[i], fp8_max, element(name, i));
    result[i] = scale_inv_from_amax(amax[i], fp8_max, name);
  }
  return result;
}

float scale_from_scale_inv(float scale_inv, std::string_view name) {
  if (!usable_scale_inv(scale_inv)) reject(name, "scale_inv", scale_inv, "a finite value > 0 with a finite reciprocal");
  return 1.0f / scale_inv;
}

Eigen::ArrayXf scale_from_scale_inv(const Eigen::ArrayXf& scale_inv, std::string_view name) {
  Eigen::ArrayXf result(scale_inv.size());
  for (Eigen::Index i = 0; i < scale_inv.size(); ++i) {
    if (!usable_scale_inv(scale_inv[i])) scale_from_scale_inv(scale_inv[i], element(name, i));
    result[i] = 1.0f / scale_inv[i];
  }
  return result;
}

}  // namespace fp8::recipes
