// SPDX-License-Identifier: Apache-2.0
// `fp8 quantize --rounding gptq --data FILE`: the codes of every module against its inputs on FILE, one decoder layer
// in memory at a time, before the checkpoint is written.
//
//   .OUT.rounding/    a file per layer (quant/checkpoint/rounded.h); stays only where a run was killed
//   --resume          layers whose file stands there run once more for their outputs, and are not rounded again
#pragma once
#include <filesystem>
#include <memory>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/plan/plan.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/options/input_options.h"

namespace fp8::commands {

enum class Rounding : std::uint8_t { nearest, gptq };
constexpr auto names_of(Rounding) {
  using enum Rounding;
  return std::to_array<EnumName<Rounding>>({{nearest, "nearest"}, {gptq, "gptq"}});
}

struct RoundingOptions {
  DataOptions data;                             ///< seq_len 0: 512, or all that the model takes
  std::vector<quant::QuantizedSource> modules;  ///< that the checkpoint has in fp8
  double dampening = 0.01;                      ///< of the mean diagonal
  std::filesystem::path folder;                 ///< for the layers' files
};

/// plan: whose weights' scales are the checkpoint's; what it selects does not count. Throws UsageError for a family
/// that does not run and a --dtype that rounds the weights, io::Error for a module that is in no decoder layer, and
/// what LayerRounding throws.
extern Late<std::shared_ptr<const quant::RoundedCodes>(const std::filesystem::path& model,
                                                       const quant::PlanOptions& plan, const RoundingOptions& options,
                                                       const Context& context)>
    round_weights;

}  // namespace fp8::commands
