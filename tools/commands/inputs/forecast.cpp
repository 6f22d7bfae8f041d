// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/forecast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include "fp8/configs/module_types.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/names/expert_weights.h"

namespace fp8::commands {
namespace {

constexpr double kSaid = 60;         // seconds from which on a run is announced
constexpr double kSlowest = 5e9;     // operations a second that any machine has: below, nothing needs to be tried
constexpr double kTrySeconds = 0.1;  // what trying takes
constexpr std::int64_t kRows = 256, kWidth = 2048;

/// Operations a second of products on the run's device.
double tried_flops(at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(dtype).device(device);
  const auto x = at::ones({kRows, kWidth}, options), w = at::ones({kWidth, kWidth}, options);
  at::linear(x, w);  // the first call makes threads and packs
  const Stopwatch watch;
  double done = 0;
  do {
    at::linear(x, w);
    done += 2.0 * kRows * kWidth * kWidth;
  } while (watch.seconds() < kTrySeconds);
  return done / watch.seconds();
}

}  // namespace

std::int64_t multiplied_weights(const models::CausalLM& model) {
  double weights = 0;
  for (const auto& m : measure::weight_modules(model)) {
    if (m.weight.dim() < 2 || configs::type_is(m.type, &configs::KindInfo::lookup)) continue;
    const double share = m.type == quant::kExpertType ? model.shape().expert_share : 1;
    weights += share * static_cast<double>(m.weight.numel());
  }
  return static_cast<std::int64_t>(weights);
}

Work forward_work(const std::string& command, const models::CausalLM& model, std::int64_t tokens, std::int64_t columns,
                  std::int64_t bytes) {
  const auto& shape = model.shape();
  const auto count = static_cast<double>(tokens);
  Work work{command, multiplied_weights(model), tokens, 0, bytes};
  work.operations = 2.0 * static_cast<double>(work.weights) * count +
                    4.0 * static_cast<double>(shape.hidden * shape.layers) * count * static_cast<double>(columns) / 2;
  return work;
}

std::string forecast_text(const Work& work, double flops) {
  const double seconds = work.operations / flops;
  if (seconds < kSaid) return "";
  return fmt::format(
      "{}: about {} and {} of memory: {} tokens x {:.3g} G weights, reckoned at {:.3g} GFLOP/s as tried on this "
      "machine",
      work.command, about(seconds), human_bytes(work.bytes), grouped(work.tokens),
      static_cast<double>(work.weights) / 1e9, flops / 1e9);
}

void say_forecast(const Work& work, at::ScalarType dtype, const Context& context) {
  if (context.quiet || work.operations < kSaid * kSlowest) return;
  const auto text = forecast_text(work, tried_flops(dtype, resolve_device(context)));
  if (!text.empty()) context.note(text);
}

}  // namespace fp8::commands
