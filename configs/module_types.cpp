// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/module_types.h"

namespace fp8::configs {

KindInfo info_of(ModuleKind kind) {
  switch (kind) {
    case ModuleKind::linear:
      return {1, 1, true, false};
    case ModuleKind::row_parallel_linear:
      return {1, 2, true, true};
    case ModuleKind::convolution:
      return {1, 1, true, false};
    case ModuleKind::recurrent:
      return {1, 1, true, false};
    case ModuleKind::embedding:
      return {1, 1, true, false};
    case ModuleKind::matmul:
      return {2, 1, false, false};
    case ModuleKind::b2b_matmul:
      return {2, 1, false, true};
    case ModuleKind::softmax:
      return {1, 1, false, true};
    case ModuleKind::fused_sdpa:
      return {3, 2, false, true};
    case ModuleKind::kv_cache:
      return {1, 1, false, false};
    case ModuleKind::dynamic_moe:
      return {1, 1, false, true};
    case ModuleKind::no_quantize:
      return {0, 0, false, false};
  }
  return {0, 0, false, false};
}

const std::vector<ModuleType>& module_types() {
  using K = ModuleKind;
  static const std::vector<ModuleType> types = {
      {"Linear", K::linear, true},
      {"FalconLinear", K::linear, true},
      {"LinearLayer", K::linear, true},
      {"ParallelLMHead", K::linear, true},
      {"RowParallelLinear", K::row_parallel_linear, true},
      {"ColumnParallelLinear", K::linear, true},
      {"MergedColumnParallelLinear", K::linear, true},
      {"QKVParallelLinear", K::linear, true},
      {"ReplicatedLinear", K::linear, true},
      {"LinearAllreduce", K::linear, true},
      {"ScopedLinearAllReduce", K::linear, true},
      {"LmHeadLinearAllreduce", K::linear, true},
      {"LoRACompatibleLinear", K::linear, true},
      {"LoRALinear", K::linear, true, false},
      {"Conv2d", K::convolution, false},
      {"LoRACompatibleConv", K::convolution, false},
      {"Conv1d", K::convolution, false, false},
      {"Conv3d", K::convolution, false, false},
      {"LSTMCell", K::recurrent, false, false},
      {"GRUCell", K::recurrent, false, false},
      {"RNNCell", K::recurrent, false, false},
      {"LSTM", K::recurrent, false, false},
      {"GRU", K::recurrent, false, false},
      {"RNN", K::recurrent, false, false},
      {"Embedding", K::embedding, false, false},
      {"EmbeddingBag", K::embedding, false},
      {"Matmul", K::matmul, true},
      {"B2BMatmul", K::b2b_matmul, true},
      {"Softmax", K::softmax, false},
      {"BlockSoftmaxConstMax", K::softmax, false},
      {"ModuleFusedSDPA", K::fused_sdpa, false},
      {"KVCache", K::kv_cache, false},
      {"VLLMKVCache", K::kv_cache, true},
      {"MoeMatmul", K::linear, true},
      {"MoeFP8Matmul", K::linear, true},
      {"GaudiFP8Linear", K::linear, false},
      {"GaudiMixtralSparseMoeBlock", K::dynamic_moe, false},
      {"GaudiDeepseekV3MoE", K::dynamic_moe, false},
      {"VllmMixtureOfExpertsOp", K::dynamic_moe, true},
      {"VllmMixtureOfExpertsOpFP8", K::dynamic_moe, true},
      {"VllmMixtureOfExpertsOpFP8PerChannel", K::dynamic_moe, true},
      {"FusedMoE", K::no_quantize, true},
      {"SharedFusedMoE", K::no_quantize, true},
  };
  return types;
}

const ModuleType* find_module_type(std::string_view class_name) {
  for (const auto& type : module_types()) {
    if (type.name == class_name) return &type;
  }
  return nullptr;
}

}  // namespace fp8::configs
