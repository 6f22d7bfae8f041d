// SPDX-License-Identifier: Apache-2.0
// A checkpoint of which one layer is in memory at a time: models larger than the memory run layer by layer, all samples
// through one layer before the next is read. The steps of CausalLM::forward, so the same bits.
//
//   LayerStream stream(folder, {.device = at::kHPU});
//   h = stream.embed(ids);                                       rows of the word table, read as they are needed
//   for i: { const auto layer = stream.load_layer(i); h = stream.run_layer(i, h); }
//   const auto head = stream.load_head(); logits = stream.run_head(stream.run_norm(h));
//
// Memory: placeholders for all modules, and what is loaded. The files stay open: replacing them does not change what is
// read.
#pragma once

#include "fp8/measure/model/module_tree.h"
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

  /// The model with placeholders, and the tensors that it does not use.
  const LoadedModel& loaded() const { return loaded_; }
  const ModelShape& shape() const { return loaded_.model->shape(); }
  std::int64_t layer_bytes() const;  ///< of the largest layer's weights, in the compute dtype
  std::int64_t layer_bytes(std::int64_t layer) const;
  std::int64_t head_bytes() const;  ///< of what load_head() loads
  /// "model.layers.3": what the names of that layer's modules and tensors begin with.
  const std::string& layer_name(std::int64_t layer) const { return layer_names_[static_cast<std::size_t>(layer)]; }
  const std::string& head_name() const { return head_name_; }  ///< "lm_head"

  /// ids [B, L] on the CPU -> what the first layer takes [B, L, H]; of the word table only the rows needed are read.
  /// Of the other modules before the layers, those that load_before() has loaded are used, else they are loaded here.
  /// source, here and below: as in CausalLM::forward().
  at::Tensor embed(const at::Tensor& ids, bool load = true, std::int64_t source = 0);
  Resident load_before();
  /// Rows [first, first + rows) of the word table, or with `head` of the head's weight (the same where they are tied).
  at::Tensor rows(bool head, std::int64_t first, std::int64_t rows) const;

  Resident load_layer(std::int64_t layer);
  /// h [B, L, H] -> [B, L, H]. The layer is loaded.
  at::Tensor run_layer(std::int64_t layer, const at::Tensor& h, std::int64_t source = 0);
  /// run_layer() of layers [first, end), one after the other. All are loaded.
  at::Tensor run_layers(std::int64_t first, std::int64_t end, at::Tensor h, std::int64_t source = 0);
  /// Loads what run_norm() needs, and the head, of which [first, first + rows) alone where rows > 0.
  Resident load_head(std::int64_t first = 0, std::int64_t rows = 0);
  /// Turns the last layer's output into the head's input.
  at::Tensor run_norm(const at::Tensor& h, std::int64_t source = 0);
  /// n [B, L, H] -> logits [B, L, V].
  at::Tensor run_head(const at::Tensor& n);
  /// n [B, L, H] -> what the head itself gives, of the rows loaded: [B, L, rows].
  at::Tensor head_scores(const at::Tensor& n);

  /// Modules with a weight of one layer, the head and the word table, named from the root of the model.
  std::vector<measure::WeightModule> layer_modules(std::int64_t layer) const;
  std::vector<measure::WeightModule> head_modules() const;
  std::vector<measure::WeightModule> embedding_modules() const;
  /// The modules before the layers beside the word table (tables of positions, projections); those between layers and
  /// head.
  std::vector<measure::WeightModule> before_modules() const;
  std::vector<measure::WeightModule> after_modules() const;

 private:
  std::vector<measure::WeightModule> modules_of(const std::vector<std::shared_ptr<torch::nn::Module>>& parts) const;
  const torch::nn::Module& layer(std::int64_t index) const;
  void load_shared();
  void load(at::Tensor parameter, const at::Tensor& values, Resident& resident);
  void load_module(const std::string& name, const torch::nn::Module& module, Resident& resident);

  io::Checkpoint checkpoint_;
  LoadOptions options_;
  LoadedModel loaded_;
  CausalLM::Parts parts_;
  std::string words_name_, head_name_;
  std::vector<std::string> layer_names_;
  bool tied_;        ///< the head's weight is the word table
  Resident shared_;  ///< modules that layers use beside their own, and parameters of the model itself
};

/// Bytes of all weights of a checkpoint folder in the compute dtype that `dtype` (empty: the checkpoint's) makes it.
std::int64_t bytes_in_memory(const std::filesystem::path& folder, std::optional<at::ScalarType> dtype);

}  // namespace fp8::models
