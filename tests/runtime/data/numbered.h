// SPDX-License-Identifier: Apache-2.0
// A dataset of numbers, which may fail, wait or count, for the tests of the loader.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <condition_variable>

#include "fp8/runtime/data/data_loader.h"

namespace fp8::data::testing {

/// Sample i is {[i, a random number], [i]}; `before(i)` is called first.
class Numbered : public Dataset {
 public:
  explicit Numbered(std::int64_t size, std::function<void(std::int64_t)> before = {})
      : before(std::move(before)), size_(size) {}

  std::int64_t size() const override { return size_; }
  std::vector<at::Tensor> get(std::int64_t index, SampleRandom& random) const override {
    {
      const std::lock_guard lock(mutex);
      read.push_back(index);
      threads.insert(std::this_thread::get_id());
    }
    if (before) before(index);
    return {torch::tensor({static_cast<double>(index), random.uniform()}, torch::kDouble),
            torch::tensor({index}, torch::kLong)};
  }
  std::string name_of(std::int64_t index) const override { return "file " + std::to_string(index); }

  std::function<void(std::int64_t)> before;
  mutable std::mutex mutex;
  mutable std::vector<std::int64_t> read;  ///< in the order of reading
  mutable std::set<std::thread::id> threads;

 private:
  std::int64_t size_;
};

/// A door that threads wait at until it opens.
class Door {
 public:
  ~Door() { open(); }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

inline std::vector<std::int64_t> ids_of(const trainer::Batch& batch) {
  const auto ids = batch.tensors.at(1).flatten();
  EXPECT_EQ(ids.numel(), batch.samples);
  return {ids.data_ptr<std::int64_t>(), ids.data_ptr<std::int64_t>() + ids.numel()};
}

/// Of all batches that are left.
inline std::vector<std::int64_t> rest(DataLoader& loader) {
  std::vector<std::int64_t> all;
  while (const auto batch = loader.next()) {
    const auto ids = ids_of(*batch);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

}  // namespace fp8::data::testing
