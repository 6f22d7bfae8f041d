// SPDX-License-Identifier: Apache-2.0
// damage_of_run().
#include <ATen/core/grad_mode.h>

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/damage_probe.h"
#include "fp8/tools/commands/cli/progress.h"
#include "fp8/tools/commands/cli/torch_scope.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/inputs/samples.h"
#include "fp8/tools/commands/inspect/inspect_damage.h"

namespace fp8::commands {
namespace {

quant::CheckpointDamage run_with_probes(const std::filesystem::path& folder, const DamageOptions& o,
                                        const Context& context) {
  const TorchScope scope(context);
  const at::NoGradGuard no_grad;
  auto loaded = load_language_model(folder, context);
  const auto samples = load_samples(o, folder, loaded.model->shape());
  const auto modules = measure::weight_modules(*loaded.model);
  const quant::Plan plan = quant::plan_for(modules, plan_options(o, context));
  const quant::DamageProbe probe(modules, plan);
  Progress progress(context, "inspect", samples.count());
  for (std::int64_t first = 0; first < samples.count();) {
    check_interrupted();
    const std::int64_t count = samples.together(first, o.batch);
    logits_of(*loaded.model, samples.batch(first, count), at::kHPU);
    progress.update(first += count);
  }
  return {probe.result(), plan.skipped, plan.warnings};
}

const Provided g_run_damage(damage_of_run, run_with_probes);

}  // namespace
}  // namespace fp8::commands
