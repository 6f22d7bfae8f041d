// SPDX-License-Identifier: Apache-2.0
// How samples are divided into forwards, and the forwards into shares. Shares are of whole forwards, so that any number
// of processes makes those that one process would make, and sees the same bits. No torch here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fp8::commands {

/// Samples [first, first + count).
struct SampleRange {
  std::int64_t first = 0, count = 0;
};

class Forwards {
 public:
  /// together(first): samples from `first` on that share a forward, 1 or more.
  template <class Together>
  Forwards(std::int64_t samples, const Together& together) {
    for (std::int64_t first = 0; first < samples; first += together(first)) starts_.push_back(first);
    starts_.push_back(samples);
  }

  std::int64_t count() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t samples() const { return starts_.back(); }
  /// Those of share `index` of `shares`, which may have none. All shares have all samples, each once, in order.
  SampleRange share(std::int64_t index, std::int64_t shares) const {
    const auto start = [&](std::int64_t i) { return starts_[static_cast<std::size_t>(count() * i / shares)]; };
    return {start(index), start(index + 1) - start(index)};
  }
  /// Where the forwards of a share begin, and its end.
  std::vector<std::int64_t> starts(SampleRange share) const {
    const auto begin = std::ranges::lower_bound(starts_, share.first),
               end = std::ranges::lower_bound(starts_, share.first + share.count);
    return {begin, end + 1};
  }

 private:
  std::vector<std::int64_t> starts_;  ///< of each forward, and the end
};

}  // namespace fp8::commands
