// SPDX-License-Identifier: Apache-2.0
// Where a checkpoint keeps the weights of experts. Our parameters, below P = "model.layers.N.mlp":
//
//   P.experts.moe_op.w13_list.E.weight   gate of expert E above its up, [2 I, H]
//   P.experts.moe_op.w2_list.E.weight    down, [H, I]
//
// In checkpoints, P being named as there or "block_sparse_moe", "mlp" or "feed_forward":
//
//   one by one   P.experts.E.{gate_proj, up_proj, down_proj}.weight   or {w1, w3, w2}
//   stacked      P.experts.{gate_up_proj [E, 2 I, H], down_proj [E, H, I]}, of some families [E, H, 2 I], [E, I, H]
//                P.{input_linear [E, 2 I, H], output_linear [E, H, I]}.weight
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
  std::optional<std::int64_t> index = {};
  bool of_expert = false;
};

/// The pieces of parameter `name`; it is a piece itself unless it belongs to experts. Of forms that the checkpoint
/// lacks the first is returned, for the message about what is missing.
std::vector<WeightPiece> pieces_of(const std::string& name, const io::Checkpoint& checkpoint);

/// Measurements of a model in memory, in the names of its checkpoint: of each mixture of experts, hidden states are the
/// input of gate and up, the activation of expert E that of down. Heads that are the word table are left out. All else
/// comes back as it is.
/// An expert that no token came to takes the largest amax of the others' intermediate values; `warnings` names it.
measure::MeasurementFile in_names_of_checkpoint(measure::MeasurementFile file, const io::Checkpoint& checkpoint,
                                                std::vector<std::string>& warnings);

}  // namespace fp8::quant
