// SPDX-License-Identifier: Apache-2.0
// A Llama, Mistral or Mixtral checkpoint of which one decoder layer is in memory at a time: models larger than the
// memory run layer by layer, all samples through one layer before the next is read. Same modules, same operations, same
// shapes as CausalLM::forward, so the same bits.
//
//   LayerStream stream(folder, {.device = at::kHPU});
//   h = stream.embed(ids);                                       rows of the embedding, read as they are needed
//   for i: { const auto layer = stream.load_layer(i); h = stream.run_layer(i, h); }
//   const auto head = stream.load_head(); logits = stream.run_head(h);
//
// Memory: placeholders for all modules, and what is loaded. The files stay open: replacing them does not change what is
// read.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/load.h"

namespace fp8::models {

/// Weights that are in memory; their modules get their placeholders back when it goes.
class Resident {
 public:
  Resident() = default;
  ~Resident() { release(); }
  Resident(Resident&& other) noexcept : loaded_(std::move(other.loaded_)) { other.loaded_.clear(); }
  Resident& operator=(Resident&&) = delete;
  void release();

 private:
  friend class LayerStream;
  struct Loaded {
    at::Tensor parameter, placeholder;
  };
  std::vector<Loaded> loaded_;
};

class LayerStream {
 public:
  /// Reads config.json and the headers. Throws io::Error for a tensor that is missing or of another shape (all are
  /// checked now; whether values are finite when they are read), and for an fp8 checkpoint.
  LayerStream(const std::filesystem::path& folder, const LoadOptions& options);

  /// The model with placeholders, its configuration, and the tensors nobody uses.
  const LoadedModel& loaded() const { return loaded_; }
  std::int64_t layers() const { return loaded_.config.num_hidden_layers; }
  std::int64_t layer_bytes() const;  ///< of the largest decoder layer's weights, in the compute dtype
  std::int64_t head_bytes() const;   ///< of lm_head.weight

  /// ids [B, L] on the CPU -> rows of the embedding [B, L, H]; only these rows are read.
  at::Tensor embed(const at::Tensor& ids) const;
  /// Rows [first, first + rows) of the embedding, or with `head` of lm_head.weight (the same where they are tied).
  at::Tensor rows(bool head, std::int64_t first, std::int64_t rows) const;

  Resident load_layer(std::int64_t layer);
  /// h [B, L, H] -> [B, L, H]. The layer is loaded.
  at::Tensor run_layer(std::int64_t layer, const at::Tensor& h);
  /// The last norm and lm_head, of which [first, first + rows) alone where rows > 0.
  Resident load_head(std::int64_t first = 0, std::int64_t rows = 0);
  /// What lm_head takes: the last norm of h.
  at::Tensor run_norm(const at::Tensor& h);
  /// n [B, L, H] -> logits [B, L, V], or of the rows loaded [B, L, rows].
  at::Tensor run_head(const at::Tensor& n);

  /// Modules with a weight of one layer, and lm_head, named from the root of the model.
  std::vector<measure::WeightModule> layer_modules(std::int64_t layer) const;
  std::vector<measure::WeightModule> head_modules() const;
  std::vector<measure::WeightModule> embedding_modules() const;

 private:
  void load(const std::string& name, at::Tensor parameter, at::Tensor values, Resident& resident);
  LlamaDecoderLayerImpl& layer(std::int64_t index) const;

  io::Checkpoint checkpoint_;
  LoadOptions options_;
  LoadedModel loaded_;
};

/// Bytes of all weights of a checkpoint folder in the compute dtype that `dtype` (empty: the checkpoint's) makes it.
std::int64_t bytes_in_memory(const std::filesystem::path& folder, std::optional<at::ScalarType> dtype);

}  // namespace fp8::models
