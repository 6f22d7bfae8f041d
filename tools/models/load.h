// SPDX-License-Identifier: Apache-2.0
// Checkpoint folder -> model with its weights, read a few megabytes at a time: peak memory is the model and no more.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/format.h"
#include "fp8/tools/models/causal_lm.h"

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
  std::vector<std::string> warnings;  ///< of an fp8 checkpoint: what other readers would misread
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

/// One tensor of a checkpoint on the CPU, in its own dtype. Throws io::Error on a dtype that LibTorch lacks.
at::Tensor read_tensor(const io::Checkpoint& checkpoint, const std::string& name);

/// One weight: shape checked against `shape`, finite, converted to `dtype` on `device`. index: the weight is that
/// matrix of a stacked tensor [N, shape...]. Throws io::Error.
at::Tensor read_weight(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                       at::ScalarType dtype, at::Device device, std::optional<std::int64_t> index = std::nullopt,
                       bool allow_nonfinite = false);

/// Rows [first, first + rows) of a weight of `shape`, otherwise as read_weight().
at::Tensor read_weight_rows(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                            std::int64_t first, std::int64_t rows, at::ScalarType dtype, at::Device device);

/// A parameter of loaded.model from wherever the checkpoint keeps it (quant/names/expert_weights.h), one piece in
/// memory at a time beside it.
at::Tensor read_parameter(const LoadedModel& loaded, const io::Checkpoint& checkpoint, const std::string& name,
                          at::IntArrayRef shape, const LoadOptions& options);

/// Throws io::Error unless the checkpoint has what read_parameter() would read, in that shape.
void check_parameter(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                     CausalLM::Storage storage = {});

/// Throws io::Error unless the checkpoint has tensor `name`, which config.json promises: "num_hidden_layers 32".
void require_promised(const io::Checkpoint& checkpoint, const std::string& name, const std::string& promise);

/// Tensors of the checkpoint that no parameter of the model takes, in file order.
std::vector<std::string> unused_tensors(const torch::nn::Module& model, const io::Checkpoint& checkpoint);

/// LibTorch's dtype of a file's. Throws io::Error naming it (U16, U32, F8_E8M0 and others are not weights).
at::ScalarType scalar_type_of(io::DType dtype, const std::string& tensor);

/// "f32", "bf16", "f16".
const char* name_of_dtype(at::ScalarType dtype);

/// Bytes of all parameters and buffers, a shared storage counted once.
std::int64_t weights_bytes(const torch::nn::Module& module);

}  // namespace fp8::models
