// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_data.h"

#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::commands {

class TextBatches::Dataset : public data::Dataset {
 public:
  explicit Dataset(text::Chunks chunks) : chunks(std::move(chunks)) {}

  std::int64_t size() const override { return chunks.count; }
  /// [L] int64, a view of the chunk.
  std::vector<at::Tensor> get(std::int64_t index, data::SampleRandom&) const override {
    auto* const ids = const_cast<std::int64_t*>(chunks.ids.data()) + index * chunks.length;  // nobody writes to it
    return {at::from_blob(ids, {chunks.length}, at::kLong)};
  }
  std::int64_t tokens_of(std::int64_t) const override { return chunks.length; }

  const text::Chunks chunks;
};

TextBatches::TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
                         std::int64_t multiple)
    : dataset_(std::make_shared<const Dataset>(std::move(chunks))),
      loader_(std::make_unique<data::DataLoader>(
          dataset_,
          data::DataLoaderOptions{
              .batch_size = batch, .shuffle = shuffle, .multiple = multiple, .seed = seed, .device = device})) {}

const text::Chunks& TextBatches::chunks() const { return dataset_->chunks; }

std::uint64_t TextBatches::fingerprint() const {
  io::Fnv hash;
  for (const auto id : chunks().ids) hash.step(static_cast<std::uint64_t>(id));
  return hash.value();
}

}  // namespace fp8::commands
