// SPDX-License-Identifier: Apache-2.0
// --kv-cache (model_options.h) applied to a model.
#pragma once
#include <string>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inputs/model_options.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {

/// Puts the model's key-value caches in the precision asked for; options: as check_kv_cache_options() lets pass. Throws
/// io::Error if there are no scales (the checkpoint has none and no measurements are given), or they are of another
/// model.
void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& options, const Context& context);

/// What the caches hold now.
struct KvCacheInForce {
  std::string holds;   ///< "fp8", or the compute dtype: "bf16"
  std::string scales;  ///< "tensor" or "head"; empty without fp8
  std::string text() const { return scales.empty() ? holds : holds + ", " + scales + " scales"; }
};
KvCacheInForce kv_cache_of(const models::LoadedModel& model);

}  // namespace fp8::commands
