// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace fp8::data {
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

std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(epoch)};
  std::mt19937_64 generator(sequence);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i, generator)]);
  return order;
}

Share BatchPlan::share(std::int64_t batch, int rank, int ranks) const {
  const std::int64_t begin = std::min(batch, batches_) * batch_size_;
  const std::int64_t left = std::min(batch_size_ * ranks, samples_ - begin) - rank;
  return {begin + rank, ranks, left > 0 ? (left + ranks - 1) / ranks : 0};
}

}  // namespace fp8::data
