// SPDX-License-Identifier: Apache-2.0
// The stacks of a model's blocks: the containers of a checkpoint whose numbered parts are the layers that its config
// counts. No torch here.
//
//   config.json                      names of the file                      what it is
//   num_hidden_layers 2              model.layers.0.self_attn.q_proj        inside
//                                    model.layers.1.mlp.up_proj             inside
//   num_nextn_predict_layers 1       model.layers.2.eh_proj                 outside: behind the last block
//                                    mtp.layers.0.self_attn.q_proj          outside: a container of another count
//                                    mlp1.3, score, multi_modal.linear_1    outside: in no container
//
// Engines build what stands outside (bridges of draft layers, projectors, heads of classes that are no language model)
// as plain modules, and take whatever the file holds for values.
#pragma once

#include "fp8/quant/names/model_names.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// Blocks 0 to count - 1 of a container.
struct BlockStack {
  std::string before;  ///< "model.layers."
  std::int64_t count = 0;
};

class ModelStacks {
 public:
  ModelStacks() = default;
  /// Reads names and shapes. Where the config counts no layers, or no container has as many, nothing is known.
  ModelStacks(const io::Checkpoint& checkpoint, const io::Json& config, const ModelNames& names);

  /// True if every stack that the config counts was found: one, or an encoder's and a decoder's.
  bool known() const { return !stacks_.empty(); }
  const std::vector<BlockStack>& stacks() const { return stacks_; }
  /// Returns the first missing block, "model.layers.3", where the config counts blocks and the file has only some of a
  /// stack; "layers.0" where it has no stack at all. Empty where all are there, or where the config does not count.
  const std::string& missing() const { return missing_; }
  /// The number of a module's block; -1 outside of them.
  std::int64_t block_of(std::string_view module) const;
  bool holds(std::string_view module) const { return block_of(module) >= 0; }

 private:
  std::vector<BlockStack> stacks_;
  std::string missing_;
};

/// The part of a config.json that describes the language model: the outermost that counts words and layers, or that is
/// no part of a tower; the whole without one.
const io::Json& language_config(const io::Json& config);

/// "model.layers." and 3 of "model.layers.3.mlp.up_proj": up to the first part that is a number, not the last one. An
/// empty text without one.
std::pair<std::string_view, std::int64_t> block_of_name(std::string_view name);

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

/// Throws io::Error naming folder, tensor, its shape and the one that `config` asks for, or a layer that it promises
/// and the checkpoint lacks. Weights in codes may stand transposed.
void require_promised_shapes(const io::Checkpoint& checkpoint, const io::Json& config);

/// How the weights in codes of a checkpoint stand. mixed: some one way, some the other.
enum class Orientation { unknown, upright, transposed, mixed };
/// As the sizes of config.json and the biases beside weights prove; square weights stand as the others do.
Orientation codes_orientation(const io::Checkpoint& checkpoint, const io::Json& config);

}  // namespace fp8::quant
