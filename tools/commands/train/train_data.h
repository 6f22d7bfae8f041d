// SPDX-License-Identifier: Apache-2.0
// The chunks of a text as batches of token ids [B, L], in an order drawn anew for each epoch from (seed, epoch).
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "fp8/runtime/trainer/batch_source.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

class TextBatches : public trainer::BatchSource {
 public:
  /// shuffle: false keeps the order of the text. multiple: an epoch has a multiple of so many chunks and leaves out the
  /// rest. Its last batch has what is left over.
  TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
              std::int64_t multiple = 1);

  std::int64_t batches() const override { return (used_ + batch_ - 1) / batch_; }
  void seek(std::int64_t epoch, std::int64_t batch) override;
  /// tensors[0]: ids [B, L] int64 on the device. tokens: B * L.
  std::optional<trainer::Batch> next() override;
  std::optional<trainer::Batch> deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) override;

  const text::Chunks& chunks() const { return chunks_; }
  /// A hash of all ids: a text that changed is another text.
  std::uint64_t fingerprint() const;

 private:
  /// `count` chunks of the epoch's order, every `step`-th from `first` on.
  trainer::Batch gather(std::int64_t first, std::int64_t step, std::int64_t count) const;

  text::Chunks chunks_;
  std::int64_t batch_, used_;  ///< used_: chunks of an epoch
  bool shuffle_;
  std::uint64_t seed_;
  c10::Device device_;
  std::int64_t epoch_ = -1, position_ = 0;
  std::vector<std::int64_t> order_;
};

}  // namespace fp8::commands
