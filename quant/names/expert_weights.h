// SPDX-License-Identifier: Apache-2.0
// Where a checkpoint keeps the weights of experts, in both of Hugging Face's forms, below P = "model.layers.N":
//
//   our parameter                                         per expert           stacked
//   P.block_sparse_moe.experts.moe_op.w13_list.E.weight   experts.E.w1.weight  experts.gate_up_proj [E, 2 I, H]
//                                                         above E.w3.weight
//   P.block_sparse_moe.experts.moe_op.w2_list.E.weight    experts.E.w2.weight  experts.down_proj [E, H, I]
//   P.block_sparse_moe.gate.weight                        gate.weight          gate.weight
//
// each below P.block_sparse_moe or P.mlp (as transformers 5 names it in memory).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// One piece of a parameter: a tensor of the checkpoint, or one matrix of a stacked one. Pieces follow each other in
/// dimension 0.
struct WeightPiece {
  std::string tensor;
  std::optional<std::int64_t> index;
};

/// The pieces of parameter `name`; it is a piece itself unless it belongs to experts. Of forms that the checkpoint
/// lacks the per-expert one under block_sparse_moe is returned, for the message about what is missing.
std::vector<WeightPiece> pieces_of(const std::string& name, const io::Checkpoint& checkpoint);

/// Measurements of a model in memory, in the names of its checkpoint: of each mixture of experts, hidden states are the
/// input of w1 and w3, the activation of expert E that of w2. Measurements without a mixture of experts come back as
/// they are.
measure::MeasurementFile in_names_of_checkpoint(measure::MeasurementFile file);

}  // namespace fp8::quant
