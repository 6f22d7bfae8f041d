// SPDX-License-Identifier: Apache-2.0
// Checkpoint folder -> model with its weights, read a few megabytes at a time: peak memory is the model and no more.
#pragma once
#include <c10/core/Device.h>

#include "fp8/tools/models/weights/parameters.h"

namespace fp8::models {

struct LoadOptions {
  std::optional<at::ScalarType>
      dtype;  ///< compute dtype f32, bf16 or f16; empty: config.json's, else that of the embedding
  at::Device device = at::kCPU;
  AttentionKind attention = AttentionKind::fused;
  std::optional<kernels::Dialect> dialect = {};  ///< of an fp8 checkpoint's codes: quant::LoadFp8Options
  bool allow_nonfinite = false;  ///< NaN and Inf among the weights are taken as they are, instead of refused
};

struct LoadedModel {
  std::shared_ptr<CausalLM> model;
  io::Json config_json;  ///< config.json whole
  std::filesystem::path folder;
  at::ScalarType dtype = at::kFloat;  ///< compute dtype of the parameters
  std::vector<std::string> unused;    ///< tensors of the checkpoint that no parameter takes, in file order
  std::vector<std::string> warnings;  ///< parts that are not used, or that other readers would misread
};

/// Loads a checkpoint folder (config.json and model.safetensors or shards). Throws io::Error naming file and tensor: a
/// missing tensor, a shape or dtype that does not fit, a NaN or infinity among the weights (with their number) or after
/// conversion to the compute dtype, codes that no quantization_config explains. A folder whose config.json or
/// hf_quant_config.json tells of a quantization goes through load_quantized().
LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options = {});

/// All of load_model() but the weights: the configuration is read, the checkpoint has what it asks for, the model has
/// placeholders.
LoadedModel prepare_model(const std::filesystem::path& folder, const io::Checkpoint& checkpoint,
                          const LoadOptions& options);

/// Fills the model of an fp8 checkpoint. loaded: config_json, folder and dtype are set, the model has
/// placeholders.
void load_quantized(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options);

/// Fills every parameter of the model from the tensor of its name, and lists the others in loaded.unused.
void load_parameters(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options);

/// The values of a parameter of loaded.model.
at::Tensor read_parameter(const LoadedModel& loaded, const io::Checkpoint& checkpoint, const std::string& name,
                          const at::Tensor& parameter, const LoadOptions& options);

/// Tensors of the checkpoint that no parameter of the model takes, in file order.
std::vector<std::string> unused_tensors(const torch::nn::Module& model, const io::Checkpoint& checkpoint);

/// Bytes of all parameters and buffers, a shared storage counted once.
std::int64_t weights_bytes(const torch::nn::Module& module);
/// Bytes of the checkpoint's tensors, as those that write or inspect it say; of a model that was put into fp8 after it
/// was loaded, as above.
std::int64_t weights_bytes(const LoadedModel& loaded);

}  // namespace fp8::models
