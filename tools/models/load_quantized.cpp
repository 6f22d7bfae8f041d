// SPDX-License-Identifier: Apache-2.0
// Where an fp8 checkpoint enters the model.
#include "fp8/runtime/io/error.h"
#include "fp8/tools/models/load.h"

namespace fp8::models {

void load_quantized(LoadedModel& loaded, const io::Checkpoint&, const LoadOptions&) {
  throw io::Error("[models] " + loaded.folder.string() +
                  " is an fp8 checkpoint (config.json has quantization_config), allowed: a checkpoint of F32, BF16 or F16 weights");
}

}  // namespace fp8::models
