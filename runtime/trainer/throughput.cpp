// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/throughput.h"

#include <cmath>

namespace fp8::trainer {
namespace {

double rounded(double value, double factor) { return std::round(value * factor) / factor; }

}  // namespace

io::Json speed_metrics(const std::string& split, const SpeedInput& in) {
  io::Json metrics = {{split + "_runtime", rounded(in.end - in.start, 1e4)}};
  const bool warm = in.start_after_warmup.has_value() && in.steps > in.warmup_steps;
  const double seconds = in.end - (warm ? *in.start_after_warmup : in.start) - in.log_evaluate_save_seconds;
  if (!(seconds > 0)) return metrics;
  const auto add = [&](const char* what, std::int64_t all, std::int64_t warmup) {
    metrics[split + what] = rounded(static_cast<double>(all - (warm ? warmup : 0)) / seconds, 1e3);
  };
  add("_samples_per_second", in.samples, in.warmup_samples);
  add("_steps_per_second", in.steps, in.warmup_steps);
  add("_tokens_per_second", in.tokens, in.warmup_tokens);
  return metrics;
}

}  // namespace fp8::trainer
