// SPDX-License-Identifier: Apache-2.0
// Whether a checkpoint has what its class needs, told by names alone. No torch here.
//
//   blocks     as many as config.json counts, each with what its sisters have: those for which all lists of the config
//              with one entry per layer (layer_types, ...) say the same
//   words      an embedding; a file that holds the head that is tied to it is read by transformers alone
//   norm       the one behind the last block, where blocks have norms
//   head       of a class that is a language model: a tensor, or tied to the embedding
//
// Of families without a row nobody knows which of these they need.
#pragma once
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// What is missing or left over, tensor first: "model.layers.2.mlp.up_proj.weight: missing, 3 blocks like it have one".
/// Empty where the model's blocks are not known.
std::vector<std::string> incomplete_parts(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules);

/// Throws io::Error for names that no class has: those of a module wrapped by torch.compile or data parallelism, of a
/// layer under an adapter that was not merged. Says what takes them away.
void require_plain_names(const io::Checkpoint& checkpoint);

/// Throws io::Error for such names, and for the first thing that incomplete_parts() finds of a family with a row;
/// returns a warning for one without.
std::vector<std::string> require_complete(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules);

}  // namespace fp8::quant
