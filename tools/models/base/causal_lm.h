// SPDX-License-Identifier: Apache-2.0
// A language model as commands, the loader and layer streaming know it, whatever its family; encoders too, whose task
// is another (ModelShape::task) and which have no cache:
//
//   h = embed(words(ids))     rows of the word table, and what is added to them (positions)
//   run = begin(h, cache)     what the layers of one forward share is made once (rotary angles, masks)
//   h = run(i, h)             layer after layer
//   logits = finish(head(norm(h)))
//
// Models that answer a source text (Task::answer) see it in front of the answer: of the columns [source | answer] an
// encoder's layers change the first S, then a decoder's layers, which look at those, the others; logits are of these.
//
// forward() is these steps; LayerStream takes them with one layer in memory. A family is a class with the steps, a
// config (model_config.h) and a row (registry.h). Modules and parameters have the names of the family's checkpoints.
// Shapes: batch B, length L, vocabulary V, hidden H.
#pragma once
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/modules/op_modules.h"
#include "fp8/tools/models/base/model_config.h"

namespace fp8::models {

/// The data that a model keeps of the tokens it has seen (keys and values, say): made by CausalLM::make_cache() and
/// filled by forward(). What is in it only the family knows.
class Cache {
 public:
  /// capacity: the most tokens (prompt and generated) it will hold.
  explicit Cache(std::int64_t capacity) : capacity_(capacity) {}
  virtual ~Cache() = default;

  /// Columns in use: the tokens of the longest sequence.
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  /// The column that each sequence begins in, where they differ (CausalLM::join()); all sequences end in the last.
  const std::vector<std::int64_t>& starts() const { return starts_; }
  /// Called once per forward, after all layers have seen L tokens.
  void advance(std::int64_t tokens) { length_ += tokens; }
  /// Keeps these sequences alone. For caches that join() made.
  virtual void keep(const std::vector<std::int64_t>& sequences);

 protected:
  void set_starts(std::vector<std::int64_t> starts) { starts_ = std::move(starts); }

 private:
  std::int64_t capacity_, length_ = 0;
  std::vector<std::int64_t> starts_;
};

/// Of `length` columns, the first `source` of them a text of their own: [1 or B, length], f32 on the CPU. What cache
/// holds is in front of the others.
at::Tensor positions_of(std::int64_t length, std::int64_t source, const Cache* cache);

/// A fresh model holds no weights: its parameters are placeholders. With tied embeddings the weights
/// of the word table and the head are one tensor, and C++'s named_parameters() lists it under both names.
class CausalLM : public torch::nn::Module {
 public:
  /// The modules behind the steps.
  struct Parts {
    torch::nn::Embedding words{nullptr};                          ///< [V, H]
    std::vector<std::shared_ptr<torch::nn::Module>> before = {};  ///< the other modules that embed() uses
    torch::nn::ModuleList layers{nullptr};  ///< in their order; of two stacks: a list of this form
    std::vector<std::shared_ptr<torch::nn::Module>> shared = {};  ///< those that layers use beside their own; small
    std::vector<std::shared_ptr<torch::nn::Module>> after = {};   ///< the modules that norm() uses
    torch::nn::Linear head{nullptr};                              ///< H -> V or classes; Task::embed: null
  };
  /// Layer `layer` of one forward: h [B, L, H] -> [B, L, H].
  using LayerFunction = std::function<at::Tensor(std::int64_t layer, const at::Tensor& h)>;
  /// Runs layer(h), or sees to it that it is run: te::checkpoint(layer, h) in training. layer may be called again while
  /// the model lives.
  using LayerRunner =
      std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& h)>;

  struct Storage {
    bool transposed = false;  ///< [in, out], as Conv1D's; of experts: where they are stacked
    bool wide = false;        ///< stays f32 whatever is computed in
  };

  const ModelShape& shape() const { return shape_; }

  enum class Logits : std::uint8_t { all, last, none };
  /// ids [B, L] int64, L >= 1, ids in [0, V) -> logits [B, L, V] in the compute dtype; last: of the last position
  /// alone, [B, 1, V]; none: undefined, for what the cache gets. With a cache the ids continue what it holds. Throws
  /// c10::Error if the positions of a sequence pass shape().context. source: the first so many ids are the source's, of
  /// all rows alike, and have no logits; 0 with a cache that knows the source.
  at::Tensor forward(const at::Tensor& ids, Cache* cache = nullptr, Logits logits = Logits::all,
                     std::int64_t source = 0);
  /// forward() in two steps, so that the logits of some positions alone are in memory: the head's input, and the logits
  /// of columns of it.
  at::Tensor head_input(const at::Tensor& ids, std::int64_t source = 0);
  at::Tensor logits(const at::Tensor& columns);
  /// ids [B, L] -> what norm() makes of the last layer's hidden states, [B, L, H]. Task::answer: of a source.
  at::Tensor hidden(const at::Tensor& ids);
  /// capacity: the most tokens (prompt and generated) it will hold. Throws c10::Error for an encoder.
  virtual std::unique_ptr<Cache> make_cache(std::int64_t capacity) const = 0;
  /// One cache of the sequences of all, which may differ in length, to be continued together: it has `capacity` columns
  /// and begins with as many as the longest has tokens. nullptr: this family has none.
  virtual std::unique_ptr<Cache> join(const std::vector<Cache*>& caches, std::int64_t capacity) const;
  /// True if a prompt may be read part by part: what a token adds to the cache does not depend on those after it.
  virtual bool reads_in_parts() const { return true; }
  /// How the layers of a forward in train mode and without a cache are run; empty: called.
  void set_layer_runner(LayerRunner runner) { run_layer_ = std::move(runner); }
  /// Gives a tied head a weight of its own, a copy: it can be quantized then and the word table not. Else does nothing.
  void untie_head();

  virtual Parts parts() const = 0;
  /// Of one of the parts: "model.layers".
  std::string name_of(const torch::nn::Module& part) const;

  /// words [B, L, H]: rows of the word table for the tokens at `positions` ([1 or B, L], f32 on the CPU) -> what the
  /// first layer takes. source: as in forward().
  virtual at::Tensor embed(const at::Tensor& words, const at::Tensor& positions, std::int64_t source) { return words; }
  /// The layers of a forward whose first layer takes `h`. The function is good while the model and the cache live.
  virtual LayerFunction begin(const at::Tensor& h, Cache* cache, std::int64_t source) = 0;
  /// Turns the last layer's output into the head's input, or the step before that: the hidden states of all positions.
  virtual at::Tensor norm(const at::Tensor& h) = 0;
  virtual at::Tensor last_hidden(const at::Tensor& h) { return norm(h); }
  /// Turns the head's output into logits. Element by element: the head may be run in parts.
  virtual at::Tensor finish(const at::Tensor& scores) { return scores; }
  /// True if checkpoints have module `name` and this model leaves it out: it is of what looks at images, or of the head
  /// of another task.
  virtual bool leaves_out(const std::string& name) const { return false; }
  /// How checkpoints hold a parameter, where that is not as the model has it.
  virtual Storage storage_of(const std::string& parameter) const { return {}; }

 protected:
  /// type: Hugging Face's class, "LlamaForCausalLM".
  CausalLM(std::string type, ModelShape shape) : torch::nn::Module(std::move(type)), shape_(std::move(shape)) {}

 private:
  at::Tensor run_layers(const at::Tensor& ids, Cache* cache, std::int64_t source);

  ModelShape shape_;
  LayerRunner run_layer_;
};

// A row of the registry (registry.h).

struct ModelFamily {
  std::string model_type;
  /// Reads config.json but for the token ids and the dtype, whose keys all families share. Throws io::Error.
  std::function<std::unique_ptr<ModelConfig>(const ConfigReader&)> read_config;
  /// The fresh model of a config that read_config gave.
  std::function<std::shared_ptr<CausalLM>(const ModelConfig&)> make;
  bool trainable = true;   ///< all its operations have derivatives
  bool of_images = false;  ///< it is the language part of models of text and images
};

// A part of the tokens of hidden states.

/// Columns [first, first + count) of x [B, L, H], in memory one after the other. Of one text strides are those of its
/// columns alone: at::matmul takes those of a longer one for a batch's, for which it copies a weight.
inline at::Tensor columns_of(const at::Tensor& x, std::int64_t first, std::int64_t count) {
  const auto columns = x.narrow(1, first, count).contiguous();
  return columns.view(columns.sizes());
}

// Modules as a fresh model has them: each weight has its shape and one NaN behind it. No memory and no time is spent on
// random numbers, and use before loading gives NaN.

/// A tensor of that shape with one NaN behind all its elements, f32.
at::Tensor placeholder(at::IntArrayRef shape);

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias);
torch::nn::Embedding make_embedding(std::int64_t rows, std::int64_t width);

/// Makes linear's weight the very tensor `weight`.
void tie(torch::nn::Linear linear, const at::Tensor& weight);

// Modules under dotted names: what lies between is made as it is needed.

/// The module at `path` ("attn.norms") below root, made where there is none. type: of what is made.
torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path, const std::string& type = "Module");

/// The parameters below `module` with their names, of a tied weight, which has two, the first.
std::vector<std::pair<std::string, at::Tensor>> distinct_parameters(const torch::nn::Module& module);

/// "a.b.c" -> "a.b"; "a" -> "".
std::string parent_of(const std::string& path);
/// "a.b.c" -> "c".
std::string leaf_of(const std::string& path);

/// Registers `module` at `path` below root and returns it.
template <class Module>
Module add_module(torch::nn::Module& root, const std::string& path, Module module) {
  return module_at(root, parent_of(path)).register_module(leaf_of(path), std::move(module));
}

// The key-value cache of models with attention.

/// Keys and values of the tokens seen so far, per layer [B, K, capacity, D], allocated at the first use. What they are
/// stored in (fp8 codes after conversion) is the word of the layer's runtime::KVCache modules; the memory is this
/// object's.
class KVCache : public Cache {
 public:
  using Cache::Cache;
  /// `cache` of a model that makes KVCaches; null stays null. Throws c10::Error for a cache of another kind.
  static KVCache* of(Cache* cache);
  /// As CausalLM::join(): sequences end in one column, those in front of a sequence are zeros that no row may see.
  static std::unique_ptr<KVCache> join(const std::vector<Cache*>& caches, std::int64_t capacity);
  void keep(const std::vector<std::int64_t>& sequences) override;

  /// Appends k, v [B, K, L, D] of one layer; returns all keys and values so far, [B, K, length + L, D], as their
  /// readers see them.
  std::pair<at::Tensor, at::Tensor> append(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                           const runtime::KVCache& keys, const runtime::KVCache& values);
  /// Appends without reading if keys and values are both kept as codes of one scale; else does nothing and returns
  /// nothing.
  using Codes = std::pair<runtime::Fp8Tensor, runtime::Fp8Tensor>;
  std::optional<Codes> append_codes(std::size_t layer, const at::Tensor& k, const at::Tensor& v,
                                    const runtime::KVCache& keys, const runtime::KVCache& values);
  /// Appends the one vector that keys and values are made of, which is kept as keys.
  at::Tensor append(std::size_t layer, const at::Tensor& latent, const runtime::KVCache& keys);

  /// Of layers that look at a source text: its keys and values [B, K, S, D], made once.
  void keep_source(std::size_t layer, const at::Tensor& k, const at::Tensor& v, const runtime::KVCache& keys,
                   const runtime::KVCache& values);
  /// The source that keep_source() kept, as its readers see it.
  std::pair<at::Tensor, at::Tensor> source(std::size_t layer, at::ScalarType dtype, const runtime::KVCache& keys,
                                           const runtime::KVCache& values) const;
  /// The columns that each joined sequence's source has, bool [B, 1, 1, S]; undefined: all of them.
  at::Tensor source_mask() const;

 private:
  static void join_sources(const std::vector<KVCache*>& parts, KVCache& all);
  std::int64_t sequences() const;
  std::pair<at::Tensor, at::Tensor>& room_for(std::size_t layer, std::int64_t tokens);
  at::Tensor put(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const;
  at::Tensor append(at::Tensor& stored, const at::Tensor& current, const runtime::KVCache& module) const;

  std::vector<std::pair<at::Tensor, at::Tensor>> layers_, sources_;
  std::vector<std::int64_t> source_starts_;  ///< of each sequence, where they differ
};

}  // namespace fp8::models
