// SPDX-License-Identifier: Apache-2.0
// Sizes that config.json promises, against the shapes of a checkpoint's matrices, by name alone: for what reads and
// writes tensors without the model (quantize, convert, inspect). The loader of models checks all of a family's
// parameters; here it is
//
//   words, head            [vocab_size, width of words]
//   q, k, v, o             [heads head_dim, H], [kv_heads head_dim, H], [H, heads head_dim]
//   gate, up, down         [intermediate_size, H], [H, intermediate_size]
//   single experts         the same with moe_intermediate_size; the router [experts, H]
//
// of the families that run natively. A size that config.json does not give is not checked, nor are towers. No torch
// here.
#pragma once
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// Throws io::Error naming folder, tensor, its shape and the one that `config` asks for, or a layer that it promises
/// and the checkpoint lacks. Weights in codes may stand transposed.
void require_promised_shapes(const io::Checkpoint& checkpoint, const io::Json& config);

/// How the weights in codes of a checkpoint stand. mixed: some one way, some the other.
enum class Orientation { unknown, upright, transposed, mixed };
/// As the sizes of config.json and the biases beside weights prove; square weights stand as the others do.
Orientation codes_orientation(const io::Checkpoint& checkpoint, const io::Json& config);

}  // namespace fp8::quant
