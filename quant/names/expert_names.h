// SPDX-License-Identifier: Apache-2.0
// What a mixture's weights are called in the model that runs, and so by a QUANT_CONFIG's lists, where checkpoints call
// them otherwise. No torch here.
//
//   checkpoint                                  in memory, as vLLM's Gaudi plugin names them
//   P.block_sparse_moe.experts.E.w1 and .w3     P.block_sparse_moe.experts.moe_op.w13_list.E    MoeMatmul
//   P.block_sparse_moe.experts.E.w2             P.block_sparse_moe.experts.moe_op.w2_list.E     MoeMatmul
//   -                                           P.block_sparse_moe.experts.moe_op               VllmMixtureOfExpertsOp
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace fp8::quant {

struct ExpertInMemory {
  std::string mixture;  ///< "P.block_sparse_moe.experts.moe_op"
  std::string name;     ///< "P.block_sparse_moe.experts.moe_op.w2_list.3"
};
inline constexpr char kExpertType[] = "MoeMatmul", kMixtureType[] = "VllmMixtureOfExpertsOp";

/// Of a checkpoint's module; nothing if it is no expert of a Mixtral's.
std::optional<ExpertInMemory> expert_in_memory(const std::string& module);

/// What the name in memory of an expert's weight says.
struct ExpertWeight {
  std::string mixture;
  std::size_t expert = 0;
  bool down = false;  ///< w2_list
};

/// Nothing if it is not MIXTURE.w13_list.E or MIXTURE.w2_list.E, E of up to six digits.
std::optional<ExpertWeight> expert_weight(const std::string& name);

}  // namespace fp8::quant
