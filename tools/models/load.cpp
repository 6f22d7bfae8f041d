// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/load.h"

#include <torch/nn/module.h>

#include <set>
#include <unordered_set>

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/tools/models/registry.h"
#include "fp8/tools/models/weights/mxfp4.h"

namespace fp8::models {
namespace {

/// Buffers that old checkpoints carry and that follow from config.json.
bool is_derived(const std::string& name) {
  constexpr std::string_view kSuffix = "rotary_emb.inv_freq";
  return name.ends_with(kSuffix);
}

/// The dtype to compute in when neither the caller nor config.json says: that of the word table.
at::ScalarType dtype_of_weights(const io::Checkpoint& checkpoint, const CausalLM& model) {
  const std::string name = model.name_of(*model.parts().words) + ".weight";
  if (!checkpoint.contains(name)) return at::kFloat;
  const auto dtype = checkpoint.info(name).dtype;
  return dtype == io::DType::BF16 ? at::kBFloat16 : dtype == io::DType::F16 ? at::kHalf : at::kFloat;
}

}  // namespace

std::vector<std::string> unused_tensors(const torch::nn::Module& model, const io::Checkpoint& checkpoint) {
  std::set<std::string> used;
  for (const auto& item : model.named_parameters()) {
    for (const auto& piece : quant::pieces_of(item.key(), checkpoint)) used.insert(piece.tensor);
    if (has_mxfp4(checkpoint, item.key())) used.insert({item.key() + "_blocks", item.key() + "_scales"});
  }
  std::vector<std::string> unused;
  for (const auto& name : checkpoint.names())
    if (used.count(name) == 0 && !is_derived(name)) unused.push_back(name);
  return unused;
}

ReadOptions read_options(const LoadedModel& loaded, const LoadOptions& options) {
  return {.dtype = loaded.dtype, .device = options.device, .allow_nonfinite = options.allow_nonfinite};
}

void load_parameters(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options) {
  std::unordered_set<const void*> done;  // a tied weight comes up twice
  for (auto& item : loaded.model->named_parameters()) {
    auto& parameter = item.value();
    if (!done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    parameter.set_data(read_parameter(checkpoint, item.key(), parameter.sizes(), loaded.model->storage_of(item.key()),
                                      read_options(loaded, options)));
  }
  loaded.unused = unused_tensors(*loaded.model, checkpoint);
}

LoadedModel prepare_model(const std::filesystem::path& folder, const io::Checkpoint& checkpoint,
                          const LoadOptions& options) {
  LoadedModel loaded;
  loaded.folder = folder;
  loaded.warnings = quant::notices_beside(checkpoint);
  const auto config = read_config(folder, &loaded.config_json);
  if (quant::read_quantization_config(checkpoint).is_null()) loaded.config_json.erase("quantization_config");
  config.values->attention = options.attention;
  config.values->fit(checkpoint);
  config.values->check(checkpoint);
  loaded.model = config.make();
  loaded.dtype = options.dtype          ? *options.dtype
                 : config.values->dtype ? *config.values->dtype
                                        : dtype_of_weights(checkpoint, *loaded.model);
  loaded.model->eval();
  return loaded;
}

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  read_config(folder);  // an error in it is the first to be told
  const io::Checkpoint checkpoint(folder);
  const bool quantized = is_quantized(folder);
  if (!quantized) quant::require_no_codes(checkpoint, mxfp4_tensors(checkpoint));
  auto loaded = prepare_model(folder, checkpoint, options);
  if (quantized)
    load_quantized(loaded, checkpoint, options);
  else
    load_parameters(loaded, checkpoint, options);
  loaded.model->eval();
  return loaded;
}

std::int64_t weights_bytes(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::int64_t bytes = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<std::int64_t>(tensor.nbytes());
  };
  for (const auto& tensor : module.parameters()) add(tensor);
  for (const auto& tensor : module.buffers()) add(tensor);
  return bytes;
}

}  // namespace fp8::models
