// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/module_types.h"

namespace fp8::configs {

namespace {

using K = ModuleKind;

constexpr KindInfo kKinds[] = {
    {.kind = K::linear,
     .inputs = 1,
     .outputs = 1,
     .weight = true,
     .linear = true,
     .stacks_experts = true,
     .fake_quant = true},
    {.kind = K::row_parallel_linear,
     .inputs = 1,
     .outputs = 2,
     .weight = true,
     .outputs_always = true,
     .reduces = true,
     .linear = true,
     .fake_quant = true},
    {.kind = K::convolution, .inputs = 1, .outputs = 1, .weight = true, .convolution = true},
    {.kind = K::recurrent, .inputs = 1, .outputs = 1, .weight = true, .several_weights = true},
    {.kind = K::embedding, .inputs = 1, .outputs = 1, .weight = true, .lookup = true},
    {.kind = K::matmul, .inputs = 2, .outputs = 1, .product = true, .attention = true, .fake_quant = true},
    {.kind = K::b2b_matmul, .inputs = 2, .outputs = 1, .outputs_always = true, .product = true, .attention = true},
    {.kind = K::softmax, .inputs = 1, .outputs = 1, .outputs_always = true, .attention = true},
    {.kind = K::fused_sdpa, .inputs = 3, .outputs = 2, .outputs_always = true, .attention = true},
    {.kind = K::kv_cache, .inputs = 1, .outputs = 1, .cache = true},
    {.kind = K::dynamic_moe, .inputs = 1, .outputs = 1, .outputs_always = true, .experts = true},
    {.kind = K::no_quantize, .quantized = false},
};

constexpr bool each_kind_has_its_row() {
  std::size_t next = 0;
  for (const KindInfo& info : kKinds) {
    if (static_cast<std::size_t>(info.kind) != next++) return false;
  }
  return next == static_cast<std::size_t>(ModuleKind::no_quantize) + 1;
}
static_assert(each_kind_has_its_row(), "a row for each ModuleKind, in their order");

}  // namespace

std::span<const KindInfo> module_kinds() { return kKinds; }

const KindInfo& info_of(ModuleKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

const std::vector<ModuleType>& module_types() {
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

bool is_of_kind(std::string_view class_name, ModuleKind kind) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && type->kind == kind;
}

bool type_is(std::string_view class_name, bool KindInfo::*what) {
  const ModuleType* type = find_module_type(class_name);
  return type != nullptr && info_of(type->kind).*what;
}

bool is_linear(std::string_view class_name) { return type_is(class_name, &KindInfo::linear); }

}  // namespace fp8::configs
