// SPDX-License-Identifier: Apache-2.0
// LibTorch's own datasets and loaders (torch::data) as what the trainer reads. The only header here that includes
// theirs.
//
//   data::DataLoader train(data::from_torch(torch::data::datasets::MNIST("raw").map(Normalize<>(0.13, 0.3))), {...});
//
//   data::TorchBatches train([&] { return torch::data::make_data_loader<RandomSampler>(dataset, options); }, batches);
//
// The first is preferred: order, threads and resume are those of data_loader.h. The second takes a loader as it is.
#pragma once
#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <torch/data/dataloader/base.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <mutex>

#include "fp8/runtime/data/data_loader.h"

namespace fp8::data {

namespace detail {

inline Sample tensors_of(at::Tensor tensor) { return {std::move(tensor)}; }
template <class Target>
Sample tensors_of(torch::data::Example<at::Tensor, Target> example) {
  if constexpr (std::is_same_v<Target, torch::data::example::NoTarget>)
    return {std::move(example.data)};
  else
    return {std::move(example.data), std::move(example.target)};
}
/// Examples that are not stacked.
template <class Item>
Sample tensors_of(std::vector<Item> examples) {
  std::vector<Sample> samples;
  for (auto& example : examples) samples.push_back(tensors_of(std::move(example)));
  if (samples.empty()) return {};
  return stack_samples(samples, false, [](std::size_t i) { return io::message("example {} of a batch", i); });
}

/// LibTorch's default generator begins with `seed`, until the result goes; what it was comes back.
inline auto seed_meanwhile(std::uint64_t seed) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  at::Tensor state;
  {
    const std::lock_guard lock(generator.mutex());
    state = generator.get_state();
    generator.set_current_seed(seed);
  }
  return c10::make_scope_exit([generator, state]() mutable {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  });
}

}  // namespace detail

/// A dataset with get_batch(indices), mapped or not, stacked or not; examples of tensors. Each thread that reads has a
/// copy, as theirs have. Random numbers of its own (transforms too) come from LibTorch's default generator: with
/// several threads not the same in every run.
template <class D>
class TorchDataset : public Dataset {
 public:
  explicit TorchDataset(D dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_.size();
    if (!size) throw std::invalid_argument("[data] a torch::data dataset: found no size, allowed: one with size()");
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom&) const override {
    auto copy = take();
    const std::size_t indices[] = {static_cast<std::size_t>(index)};
    auto batch = detail::tensors_of(copy->get_batch(indices));
    for (auto& tensor : batch) tensor = tensor.select(0, 0);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(copy));  // one that threw is not used again
    return batch;
  }

 private:
  std::unique_ptr<D> take() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<D>(dataset_);
    auto copy = std::move(idle_.back());
    idle_.pop_back();
    return copy;
  }

  D dataset_;
  std::int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<D>> idle_;
};

template <class D>
std::shared_ptr<const Dataset> from_torch(D dataset) {
  return std::make_shared<const TorchDataset<D>>(std::move(dataset));
}

/// The batches of a torch::data loader. What its sampler draws when an epoch begins is a function of (seed, epoch), and
/// the training's random numbers stay as they are; a place in an epoch is found by reading what lies before. With
/// enforce_ordering (their default) and a dataset without random numbers of its own, resume is bit-equal. Several ranks
/// take whole batches in turn, each reading all of them.
template <class Make>
class TorchBatches : public trainer::BatchSource {
 public:
  using Loader = std::invoke_result_t<Make&>;  ///< std::unique_ptr of theirs

  /// make: gives a new loader; called for every epoch. batches: how many an epoch has, since a loader does not say. An
  /// epoch that ends earlier is an error of the trainer's.
  TorchBatches(Make make, std::int64_t batches, std::uint64_t seed = 0)
      : make_(std::move(make)), batches_(batches), seed_(seed) {
    if (batches < 0) io::fail<std::invalid_argument>("[data] batches: found {}, allowed: 0 or more", batches);
  }

  std::int64_t batches() const override { return batches_; }

  void seek(std::int64_t epoch, std::int64_t batch) override {
    if (at_ && epoch == epoch_ && batch == next_) return;
    if (!at_ || epoch != epoch_ || batch < next_) begin(epoch);
    const auto apart = detail::seed_meanwhile(kernels::splitmix64(seed_, static_cast<std::uint64_t>(epoch)));
    while (next_ < std::min(batch, batches_) && advance()) ++next_;
    next_ = batch;
  }

  std::optional<trainer::Batch> next() override {
    if (!at_) begin(0);
    if (next_ >= batches_ || !advance()) return std::nullopt;
    ++next_;
    trainer::Batch batch{detail::tensors_of(std::move(**at_))};
    if (batch.tensors.empty() || batch.tensors[0].dim() < 1)
      throw std::invalid_argument("[data] a batch of torch::data: found no tensor with samples");
    batch.samples = batch.tensors[0].size(0);
    return batch;
  }

 private:
  using Iterator = decltype(std::declval<Loader&>()->begin());

  void begin(std::int64_t epoch) {
    at_.reset();
    loader_ = nullptr;
    const auto apart = detail::seed_meanwhile(kernels::splitmix64(seed_, static_cast<std::uint64_t>(epoch)));
    loader_ = make_();
    at_.emplace(loader_->begin());
    epoch_ = epoch;
    next_ = 0;
    begun_ = false;
  }

  /// Returns true if *at_ is a batch.
  bool advance() {
    if (std::exchange(begun_, true)) ++*at_;
    return *at_ != loader_->end();
  }

  Make make_;
  std::int64_t batches_, epoch_ = 0, next_ = 0;
  std::uint64_t seed_;
  bool begun_ = false;
  Loader loader_ = nullptr;
  std::optional<Iterator> at_;
};

}  // namespace fp8::data
