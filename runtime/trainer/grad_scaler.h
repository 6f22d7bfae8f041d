// SPDX-License-Identifier: Apache-2.0
// Loss scaling for f16: gradients below 6e-8 would be 0. The loss is multiplied by a scale before backward, gradients
// are divided by it before clipping, and the scale follows what it meets (torch's GradScaler):
//
//   a gradient was not finite:                 the step is left out, scale *= backoff_factor, the count begins anew
//   growth_interval steps in a row were:       scale *= growth_factor
#pragma once
#include <cstdint>

#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
};

class GradScaler {
 public:
  /// Below this no scale is the reason for a gradient that is not finite.
  static constexpr double kLeast = 1;

  /// init_scale: 1 to 2^60; growth_factor: above 1; backoff_factor: above 0 and below 1; growth_interval: 1 or more.
  /// Throws std::invalid_argument naming the option, the value and what is allowed.
  explicit GradScaler(GradScalerOptions options = {});

  double scale() const { return scale_; }
  /// After a step. Returns false if gradients were not finite and the scale, at kLeast already, cannot be why; nothing
  /// changes then.
  bool update(bool finite);

  /// {"scale", "growth_tracker"}, as torch names them.
  io::Json state() const;
  /// Throws io::Error naming the key.
  void load(const io::Json& state);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
};

}  // namespace fp8::trainer
