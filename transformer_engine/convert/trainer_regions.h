// SPDX-License-Identifier: Apache-2.0
// A plugin's regions around the steps of the trainer.
//
//   te::HPUPrecisionPlugin plugin("bf16-mixed");
//   te::Trainer trainer(te::with_precision(plugin, {.max_epochs = 3}));
#pragma once
#include <functional>

#include "fp8/runtime/trainer/trainer.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/region/fp8_autocast.h"

namespace fp8::te {

/// `options` with every forward in plugin.forward_context(regions), where a step's first batch alone casts weights
/// anew; what the end of a training step's region throws leaves fit(). The plugin must outlive the trainer. 16-mixed
/// wants options.grad_scaler, too, and a module that is trained in fp8 and resumed get_extra_state() in its
/// extra_state().
trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       const Fp8AutocastOptions& regions = {});
/// The same with regions that depend on the step.
trainer::TrainerOptions with_precision(const HPUPrecisionPlugin& plugin, trainer::TrainerOptions options,
                                       std::function<Fp8AutocastOptions(const trainer::ForwardInfo&)> regions);

}  // namespace fp8::te
