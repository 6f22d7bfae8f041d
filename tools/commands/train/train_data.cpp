// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "fp8/runtime/io/base/hash.h"

namespace fp8::commands {
namespace {

/// A number below n, every one equally likely. std::uniform_int_distribution differs between standard libraries.
std::uint64_t below(std::uint64_t n, std::mt19937_64& generator) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t x;
  do x = generator();
  while (x >= limit);
  return x % n;
}

}  // namespace

TextBatches::TextBatches(text::Chunks chunks, std::int64_t batch, bool shuffle, std::uint64_t seed, c10::Device device,
                         std::int64_t multiple)
    : chunks_(std::move(chunks)),
      batch_(batch),
      used_(chunks_.count - chunks_.count % multiple),
      shuffle_(shuffle),
      seed_(seed),
      device_(device),
      order_(static_cast<std::size_t>(chunks_.count)) {}

void TextBatches::seek(std::int64_t epoch, std::int64_t batch) {
  position_ = std::min(batch * batch_, used_);
  if (epoch == epoch_) return;
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  if (!shuffle_) return;
  std::seed_seq sequence{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                         static_cast<std::uint32_t>(epoch)};
  std::mt19937_64 generator(sequence);
  for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[below(i, generator)]);
}

trainer::Batch TextBatches::gather(std::int64_t first, std::int64_t step, std::int64_t count) const {
  const auto length = chunks_.length;
  auto ids = at::empty({count, length}, at::kLong);
  auto* to = ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * length, chunks_.ids.data() + order_[static_cast<std::size_t>(first + i * step)] * length,
                static_cast<std::size_t>(length) * sizeof *to);
  return {{ids.to(device_)}, count, count * length};
}

std::optional<trainer::Batch> TextBatches::next() {
  const auto count = std::min(batch_, used_ - position_);
  if (count <= 0) return std::nullopt;
  position_ += count;
  return gather(position_ - count, 1, count);
}

std::optional<trainer::Batch> TextBatches::deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) {
  seek(epoch, batch);
  const auto left = std::min(batch_ * ranks, used_ - position_) - rank;
  return gather(position_ + rank, ranks, left > 0 ? (left + ranks - 1) / ranks : 0);
}

std::uint64_t TextBatches::fingerprint() const {
  io::Fnv hash;
  for (const auto id : chunks_.ids) hash.step(static_cast<std::uint64_t>(id));
  return hash.value();
}

}  // namespace fp8::commands
