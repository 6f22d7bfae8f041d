// SPDX-License-Identifier: Apache-2.0
// The start of `fp8 train` of a language model: model, data, and a check of memory.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/io/json/json.h"
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

}  // namespace fp8::commands
