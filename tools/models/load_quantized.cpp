// SPDX-License-Identifier: Apache-2.0
// Where an fp8 checkpoint enters the model: codes and scales through quant, everything else as in any checkpoint.
#include <torch/nn/module.h>

#include <unordered_set>

#include "fp8/measure/module_tree.h"
#include "fp8/quant/load.h"
#include "fp8/runtime/io/error.h"
#include "fp8/tools/models/load.h"

namespace fp8::models {

void load_quantized(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options) {
  if (!options.device.is_hpu()) throw io::Error("[models] " + loaded.folder.string() + " is an fp8 checkpoint: it runs on hpu (--device), not on cpu");
  auto taken = quant::load_fp8(measure::weight_modules(*loaded.model), checkpoint, loaded.config_json["quantization_config"], loaded.dtype);
  std::unordered_set<const void*> done;  // a tied weight comes up twice
  for (auto& item : loaded.model->named_parameters()) {
    if (taken.count(item.key()) != 0 || !done.insert(item.value().unsafeGetTensorImpl()).second) continue;
    item.value().set_data(read_weight(checkpoint, item.key(), item.value().sizes(), loaded.dtype, options.device));
    taken.insert(item.key());
  }
  for (const auto& name : checkpoint.names())
    if (taken.count(name) == 0) loaded.unused.push_back(name);
}

}  // namespace fp8::models
