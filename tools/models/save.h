// SPDX-License-Identifier: Apache-2.0
// A model in memory -> a checkpoint folder that load_model(), transformers and vLLM read: config.json, tokenizer files,
// model.safetensors.
#pragma once

#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {

/// Writes the parameters of a dense model in `dtype` (f32, bf16 or f16) under their names, a tied lm_head not twice.
/// Each file appears whole or not at all, model.safetensors last. config: the text of config.json; its dtype is set to
/// what is written, every other byte is kept. tokenizer: a folder whose tokenizer and generation files are copied;
/// empty: none. Throws io::Error, also for a weight that is no longer finite in `dtype`.
void save_model(const CausalLM& model, const std::string& config, const std::filesystem::path& tokenizer,
                const std::filesystem::path& folder, at::ScalarType dtype);

}  // namespace fp8::models
