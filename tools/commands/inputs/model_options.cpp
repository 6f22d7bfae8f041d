// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/model_options.h"

#include <algorithm>
#include <initializer_list>
#include <system_error>

namespace fp8::commands {

bool is_script(const std::filesystem::path& model) {
  std::error_code error;
  const std::string extension = model.extension().string();
  if (std::filesystem::is_directory(model, error)) return false;
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, extension) != names.end();
  };
  // Files of a checkpoint are refused with the way to take them, and so are names of a hub, which may have a dot.
  if (is_one_of({".safetensors", ".bin", ".gguf", ".json"})) return false;
  return std::filesystem::is_regular_file(model, error) ? model.has_extension()
                                                        : is_one_of({".pt", ".pth", ".jit", ".ts", ".torchscript"});
}

void add_attention_option(Options& options, models::AttentionKind& target) {
  options.choice<models::AttentionKind>(
      "--attention", target,
      "One fused operation (default), or products and softmax that are measured and quantized each by itself",
      {{models::AttentionKind::fused, "fused"}, {models::AttentionKind::eager, "eager"}});
}

void add_nonfinite_option(Options& options, bool& target) {
  options.flag(
      "--allow-nonfinite", target,
      "Take weights with NaN or Inf as they are, instead of refusing them (quantize and convert have the same option)");
}

void add_kv_cache_options(Options& options, KvCacheOptions& target) {
  options.choice<KvCacheOptions::Mode>(
      "--kv-cache", target.mode,
      "Keys and values in fp8 (default auto: if the checkpoint has scales for them, as serving engines do)");
  options.text("--measurements", target.measurements,
               "--kv-cache fp8: make the scales of a measurement (its folder or prefix) instead of the checkpoint's");
  options.choice<quant::KvGranularity>(
      "--kv-cache-scales", target.scales,
      "--measurements: one scale for keys and one for values of a layer (default), or for each of its heads");
}

void check_kv_cache_options(const KvCacheOptions& o, const Context& context) {
  using Mode = KvCacheOptions::Mode;
  if (o.mode == Mode::fp8 && context.device != "hpu")
    throw UsageError("--kv-cache fp8: found --device " + context.device + ", allowed: hpu");
  if (o.mode != Mode::fp8 && !o.measurements.empty())
    throw UsageError("--measurements: the scales of --kv-cache fp8 are made of them, found --kv-cache " +
                     std::string(name_of(o.mode)));
  if (o.scales.has_value() && o.measurements.empty())
    throw UsageError("--kv-cache-scales: says what is made of --measurements, which is not given");
}

}  // namespace fp8::commands
