// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/calibration_size.h"

#include <algorithm>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/registry.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kSamples = 512, kTokens = 2048, kLeastTokens = 128 * 256;
constexpr double kOperations = 6e13;  // ten minutes at 100 GFLOP/s

std::int64_t parameters_of(const std::filesystem::path& model) {
  std::int64_t count = 0;
  const io::Checkpoint checkpoint(model);
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) count += checkpoint.info(i).numel();
  return count;
}

}  // namespace

std::int64_t default_samples(std::int64_t parameters, std::int64_t seq_len) {
  const double tokens = kOperations / (2.0 * static_cast<double>(std::max<std::int64_t>(parameters, 1)));
  const auto affordable = static_cast<std::int64_t>(std::min(tokens, static_cast<double>(kSamples * kTokens)));
  return std::clamp<std::int64_t>(std::max(affordable, kLeastTokens) / seq_len, 1, kSamples);
}

std::int64_t default_batch(std::int64_t seq_len) { return std::clamp<std::int64_t>(kTokens / seq_len, 1, 8); }

MeasureOptions sized(const MeasureOptions& options) {
  MeasureOptions o = options;
  o.sized_here = o.samples == 0;
  if (is_script(o.model)) {
    if (o.samples == 0) o.samples = 128;
    return o;
  }
  quant::require_model_folder(o.model);
  const std::int64_t context = models::read_config(o.model).values->shape.context;
  o.shorter = o.seq_len == 0;
  if (o.seq_len == 0) o.seq_len = std::clamp<std::int64_t>(context, 2, kTokens);
  if (o.samples == 0) o.samples = default_samples(parameters_of(o.model), o.seq_len);
  if (o.batch == 0) o.batch = default_batch(o.seq_len);
  return o;
}

std::string size_note(const MeasureOptions& o) {
  if (is_script(o.model)) return "";
  std::string note = " of " + std::to_string(o.seq_len) + " tokens";
  if (o.sized_here && o.samples < kSamples)
    note += " (at most " + std::to_string(o.samples) + " by default for a model of this size; --samples " +
            std::to_string(kSamples) + " for more)";
  return note;
}

}  // namespace fp8::commands
