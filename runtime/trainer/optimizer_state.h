// SPDX-License-Identifier: Apache-2.0
// The state of any torch::optim::Optimizer as JSON and named tensors. LibTorch's own form is a zip archive with a
// pickle in which parameters are addresses; here they are names, and the archive is only the way there and back.
//
//   {"archive": {"state": {"archive": {"@model.norm.weight": {"archive": {"step": {"int": 3}, "exp_avg": {"tensor":
//   "optimizer.0.1"}}}}}, ...}}
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/checkpoint_io.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

// Loss scaling for f16: gradients below 6e-8 would be 0. The loss is multiplied by a scale before backward, gradients
// are divided by it before clipping, and the scale follows what it meets (torch's GradScaler):
//
//   a gradient was not finite:                 the step is left out, scale *= backoff_factor, the count begins anew
//   growth_interval steps in a row were:       scale *= growth_factor

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

/// Adds the state's tensors to state.tensors below `name` ("optimizer.0") and the tree to state.json[name]. The
/// optimizer's parameters must be the network's. Throws c10::Error, io::Error.
void save_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    TrainingState& state);

/// The inverse, into an optimizer made with the same groups. Moments go to `device` where they were not on the CPU.
/// Throws io::Error or c10::Error naming what is missing or of another kind.
void load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    const TrainingState& state, c10::Device device);

}  // namespace fp8::trainer
