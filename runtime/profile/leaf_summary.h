// SPDX-License-Identifier: Apache-2.0
// Where the device's time went: sums of leaves by op, by module, by stack (phase, module's path, op).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fp8/runtime/profile/leaf_log.h"

namespace fp8::runtime {

struct LeafSum {
  std::int64_t count = 0, ns = 0, flops = 0, bytes = 0;

  void add(const LeafSum& other);
};

enum class SummaryBy { op, op_and_shapes, module, stack };
enum class SummaryOrder { time, count, flops, bytes };

class LeafSummary {
 public:
  void add(const LeafLog& log);

  bool empty() const { return sums_.empty(); }
  std::int64_t dropped() const { return dropped_; }
  LeafSum total() const;
  /// Rows, largest first.
  std::vector<std::pair<std::string, LeafSum>> rows(SummaryBy by, SummaryOrder order = SummaryOrder::time) const;
  /// "op  count  ms  share  GFLOP/s  GB/s", at most `limit` rows (-1: all) and one for the rest.
  std::string table(SummaryBy by, std::int64_t limit = 20, SummaryOrder order = SummaryOrder::time) const;
  /// A line "forward;model;layers;0;mlp;hpu::fp8_gemm_v2 12" per stack, with microseconds: what flamegraph.pl,
  /// speedscope and inferno read.
  std::string folded() const;

 private:
  struct Key {
    std::string op, shapes, module, phase;
    bool backward;
    auto operator<=>(const Key&) const = default;
  };
  static std::string text_of(const Key& key, SummaryBy by);

  std::map<Key, LeafSum> sums_;
  std::int64_t dropped_ = 0;
};

}  // namespace fp8::runtime
