// SPDX-License-Identifier: Apache-2.0
// The chunks of a text as batches of token ids [B, L], in an order drawn anew for each epoch from (seed, epoch).
// Without threads: a batch is a copy of a few kilobytes that lie in memory already.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/trainer/batch_source.h"
#include "fp8/tools/text/dataset.h"

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

}  // namespace fp8::commands
