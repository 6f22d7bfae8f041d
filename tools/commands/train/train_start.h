// SPDX-License-Identifier: Apache-2.0
// The model and the data of `fp8 train`: a language model and its data, or those of a run file.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/parts.h"
#include "fp8/runtime/trainer/training_module.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/text/dataset.h"

// The chunks of a text as batches of token ids [B, L], in an order drawn anew for each epoch from (seed, epoch).
// Without threads: a batch is a copy of a few kilobytes that lie in memory already.

namespace fp8::commands {

class TextBatches : public trainer::BatchSource {
 public:
  /// shuffle: false keeps the order of the text. multiple: an epoch has a multiple of so many chunks and leaves out the
  /// rest. Its last batch has what is left over.
  TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
              std::int64_t multiple = 1);

  std::int64_t batches() const override { return loader_->batches(); }
  void seek(std::int64_t epoch, std::int64_t batch) override { loader_->seek(epoch, batch); }
  /// tensors[0]: ids [B, L] int64 on the device. tokens: B * L.
  std::optional<trainer::Batch> next() override { return loader_->next(); }
  std::optional<trainer::Batch> deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) override {
    return loader_->deal(epoch, batch, rank, ranks);
  }

  const text::Chunks& chunks() const;
  /// A hash of all ids: a text that changed is another text.
  std::uint64_t fingerprint() const;

 private:
  class Dataset;
  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<data::DataLoader> loader_;
};

// The least memory of training, estimated before anything is allocated (a fresh model holds no weights): a config
// that no machine can train is one line, not an allocator's.

/// Throws io::Error naming `file` where f32 weights and gradients, the optimizer's moments and the logits of one
/// micro-batch are more than `available` bytes.
void refuse_oversized(const models::CausalLM& model, const TrainOptions& options, const std::string& file,
                      double available);

// A summary of the data, which ranks compare: each takes every so many batches, so that all must have the same.

/// {"batches", "first batch"}, each batch as [samples, checksum]; of a text "text" too, a checksum of all of it, and of
/// a DataLoader "last batch". Reads what it tells of and leaves the source at the beginning. Throws what next() does.
io::Json facts_of(trainer::BatchSource& source);

struct Start {
  std::shared_ptr<models::CausalLM> model;
  std::string config_text;
  std::filesystem::path tokenizer;
};

/// The model before its first step, f32 on the device.
Start start_of(const TrainOptions& options, const Context& context);

/// The chunks of a text as batches. multiple: of chunks in an epoch.
TextBatches batches_of(const text::DataFiles& files, const TrainOptions& options, const Context& context,
                       const Start& start, std::int64_t batch, bool shuffle, std::int64_t multiple = 1);

// A language model as something to train: cross entropy of the next token in f32, AdamW with weight decay on matrices.

/// State beside the parameters that checkpoints hold (fp8 scales).
struct StateHooks {
  std::function<trainer::TrainingState()> save = {};
  std::function<void(const trainer::TrainingState&)> load = {};
};

class LanguageModelTask : public trainer::TrainingModule {
 public:
  struct Files {
    std::string config;               ///< text of config.json of what is trained
    std::filesystem::path tokenizer;  ///< folder; may be empty
    at::ScalarType dtype;             ///< of saved weights
  };

  LanguageModelTask(std::shared_ptr<models::CausalLM> model, OptimizerSettings settings, Files files,
                    StateHooks hooks = {});

  torch::nn::Module& network() override;
  /// Mean over the B (L - 1) predicted tokens of a batch from TextBatches.
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t index) override;
  /// -log softmax(logits[b, i])[ids[b, i + 1]], f32 [B, L - 1], and the likeliest next tokens, int64 [B, L].
  std::vector<at::Tensor> predict_step(const trainer::Batch& batch, std::int64_t index) override;
  trainer::Optimizers configure_optimizers() override;
  /// A checkpoint that `fp8 evaluate --model` loads.
  void save_files(const std::filesystem::path& folder) override;
  trainer::TrainingState extra_state() override { return hooks_.save ? hooks_.save() : trainer::TrainingState{}; }
  void load_extra_state(const trainer::TrainingState& state) override {
    if (hooks_.load) hooks_.load(state);
  }

 private:
  std::shared_ptr<models::CausalLM> model_;
  OptimizerSettings settings_;
  Files files_;
  StateHooks hooks_;
};

/// Mean of -log softmax(logits[b, i])[ids[b, i + 1]] over i < L - 1, in f32. logits [B, L, V] of any float dtype, ids
/// [B, L], L >= 2.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids);

// `fp8 train` of a model and data of one's own, made known by a library that --load loads
// (runtime/trainer/parts/part_registry.h), and the stages validate, test and predict of any model:
//
//   OUT/train.json, OUT/log.jsonl, OUT/checkpoints/    as of a language model; what the model writes beside them
//   OUT/predictions.safetensors                        of predict: the tensors of each batch

/// Throws io::Error naming place and key, Interrupted after a checkpoint was written.
void run_module(const TrainOptions& options, Context& context);

// The sections optimizer: and lr_scheduler: of a run file, for a model of one's own. They take the place of the model's
// configure_optimizers().
//
//   optimizer     torch.optim.Adam, AdamW, SGD; FusedAdamW, FusedSGD (lightning_habana or habana_frameworks...)
//   lr_scheduler  torch.optim.lr_scheduler.StepLR {step_size, gamma}, of epochs
//                 CosineWithWarmup {warmup, steps, min_factor}, of optimizer steps

/// Nothing to do without an optimizer: the module's own. Throws io::Error naming the place.
std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context);

}  // namespace fp8::commands
