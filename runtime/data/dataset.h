// SPDX-License-Identifier: Apache-2.0
// Samples with numbers, and the random numbers of one sample.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fp8/runtime/kernels/random_bits.h"

namespace fp8::data {

/// A number below n, which is at least 1, every one equally likely. next: gives 64 random bits.
/// std::uniform_int_distribution differs between standard libraries.
template <class Next>
std::uint64_t random_below(std::uint64_t n, Next&& next) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t x;
  do x = next();
  while (x >= limit);
  return x % n;
}

/// Random numbers for one sample in one epoch: a function of (seed, epoch, index), for any thread at any time.
class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
      : seed_(kernels::splitmix64(kernels::splitmix64(seed, static_cast<std::uint64_t>(epoch)),
                                  static_cast<std::uint64_t>(index))) {}

  std::uint64_t next() { return kernels::splitmix64(seed_, drawn_++); }
  /// In [0, 1), in steps of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::uint64_t below(std::uint64_t n) {
    return random_below(n, [this] { return next(); });
  }
  /// For LibTorch's functions: at::randn({3}, random.generator()).
  at::Generator generator();

 private:
  std::uint64_t seed_, drawn_ = 0;
};

/// Called from several threads at once. Random numbers come from `random` alone: LibTorch's default generator is the
/// training's, and what it gives to a thread depends on the others.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The tensors of sample `index`, below size(). Those of one batch have the same dtypes and sizes.
  virtual std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const = 0;
  /// Messages name it beside the number of a sample: its file. Empty: nothing.
  virtual std::string name_of(std::int64_t /*index*/) const { return {}; }
  /// The number that its loss is averaged over; 0: its loss is one number.
  virtual std::int64_t tokens_of(std::int64_t /*index*/) const { return 0; }
};

/// [n, A], [n, B] ... as samples [A], [B] ...: views of these tensors. Throws std::invalid_argument: none, or of
/// different lengths.
class TensorDataset : public Dataset {
 public:
  explicit TensorDataset(std::vector<at::Tensor> tensors);
  std::int64_t size() const override { return tensors_[0].size(0); }
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override;

 private:
  std::vector<at::Tensor> tensors_;
};

// Samples side by side.

using Sample = std::vector<at::Tensor>;
using Collate = std::function<std::vector<at::Tensor>(const std::vector<Sample>&)>;

/// Tensors [A] of B samples as [B, A], contiguous on the CPU, in pinned memory if asked for. Throws
/// std::invalid_argument where samples differ in number, dtype or sizes of their tensors, or lie on a device;
/// `name_of(i)` is what the message calls sample i.
std::vector<at::Tensor> stack_samples(const std::vector<Sample>& samples, bool pinned,
                                      const std::function<std::string(std::size_t)>& name_of);

}  // namespace fp8::data
