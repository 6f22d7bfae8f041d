// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/grad_scaler.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "fp8/runtime/io/base/file.h"

namespace fp8::trainer {
namespace {

constexpr double kMost = 0x1p60;  // a loss of 1e20 is still a float

void check(const char* name, bool fine, const io::Json& found, const char* allowed) {
  if (!fine)
    throw std::invalid_argument("[trainer] grad_scaler." + std::string(name) + ": found " + found.dump() +
                                ", allowed: " + allowed);
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  check("init_scale", scale_ >= kLeast && scale_ <= kMost, scale_, "1 to 2^60");
  check("growth_factor", options.growth_factor > 1 && options.growth_factor <= kMost, options.growth_factor,
        "above 1, to 2^60");
  check("backoff_factor", options.backoff_factor > 0 && options.backoff_factor < 1, options.backoff_factor,
        "above 0 and below 1");
  check("growth_interval", options.growth_interval >= 1, options.growth_interval, "1 or more");
}

bool GradScaler::update(bool finite) {
  if (!finite) {
    if (scale_ <= kLeast) return false;
    scale_ = std::max(scale_ * options_.backoff_factor, kLeast);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    scale_ = std::min(scale_ * options_.growth_factor, kMost);
    growth_tracker_ = 0;
  }
  return true;
}

io::Json GradScaler::state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

void GradScaler::load(const io::Json& state) {
  const auto fail = [](const char* key, const io::Json& found, const char* allowed) {
    throw io::Error("[trainer] checkpoint: key 'grad_scaler." + std::string(key) + "': found " + found.dump() +
                    ", allowed: " + allowed);
  };
  const auto scale = state.is_object() ? state.value("scale", io::Json()) : io::Json();
  const auto tracker = state.is_object() ? state.value("growth_tracker", io::Json()) : io::Json();
  if (!scale.is_number() || !(scale.get<double>() >= kLeast && scale.get<double>() <= kMost))
    fail("scale", scale, "1 to 2^60");
  if (!tracker.is_number_integer() || tracker.get<std::int64_t>() < 0) fail("growth_tracker", tracker, "0 or more");
  scale_ = scale.get<double>();
  growth_tracker_ = tracker.get<std::int64_t>();
}

}  // namespace fp8::trainer
