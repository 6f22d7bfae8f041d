// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/run/run_options.h"

#include <cstdint>
#include <memory>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

decltype(run_script) run_script;

Action add_run(Options& options) {
  auto values = std::make_shared<RunOptions>();
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.path("MODEL", values->model, "TorchScript file (.pt, .jit)", Options::Need::required);
  options.path("--inputs", values->inputs, ".wav, or .safetensors with tensors named as forward's arguments",
               Options::Need::required);
  options.path("--out", values->out, "Safetensors file for what forward returns", Options::Need::required);
  options.text("--measurements", values->measurements,
               "Measured modules run in fp8: folder, prefix or file of fp8 measure");
  options.path("--config", values->config, "QUANT_CONFIG JSON instead of our own rules");
  options.list("--include", values->include, "Quantize modules whose name matches this regular expression too");
  options.list("--exclude", values->exclude,
               "Keep modules whose name matches this regular expression in high precision");
  options.path("--reference", values->reference, "Output of an earlier run to compare with");
  options.integer("--samples", values->samples, 1, kMany, "Samples (chunks of sound) to run", "all");
  options.integer("--skip", values->skip, 0, kMany, "Samples to pass over first");
  options.integer("--batch", values->batch, 1, 65536, "Samples per forward", "8, or 1 for a model that keeps state");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample");
  return [values](Context& context) { run_script(*values, context); };
}

}  // namespace fp8::commands
