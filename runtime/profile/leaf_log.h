// SPDX-License-Identifier: Apache-2.0
// Every leaf of a time, in little memory: what repeats from step to step (op, module, phase, dtypes, sizes) is kept
// once, as a LeafKind, and a leaf is a pointer to it and two times.
//
//   leaf          56 bytes, at most 2^20 of them    = 56 MiB; more are counted only
//   kind          about 300 bytes and its sizes, at most 2^16    = 20 MiB or more
#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// Leaves that differ in nothing but their times and values.
struct LeafKind {
  std::string op, module, phase;
  bool host = false, backward = false;
  c10::DeviceIndex device = 0;
  std::vector<LeafTensor> inputs, outputs;
  std::int64_t bytes = 0, flops = 0;
};

struct LoggedLeaf {
  const LeafKind* kind;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t in_use = -1;       ///< bytes on the device at the end; -1: not asked for
  std::uint64_t correlation = 0;  ///< of the op around it, as Kineto counts; 0: none
  std::uint32_t thread = 0;
  /// Of a cast: largest magnitude, shares of values in [0, 1] of its one or two results; -1: not known.
  float amax = -1, saturated = -1, saturated_2 = -1;
};

struct LeafLogOptions {
  bool modules = false;  ///< ModuleScopes are events too
  bool numbers = false;  ///< amax and saturated share of casts: one more pass over each
  bool memory = false;   ///< bytes in use at each leaf's end
};

class LeafLog final : public LeafListener {
 public:
  static constexpr std::size_t kMostLeaves = std::size_t{1} << 20, kMostKinds = std::size_t{1} << 16;

  explicit LeafLog(LeafLogOptions options, std::size_t most = kMostLeaves) : options_(options), most_(most) {}

  void leaf_ends(const LeafRecord& leaf) override;
  bool wants_numbers() const override { return options_.numbers; }
  bool wants_modules() const override { return options_.modules; }

  /// After the last leaf_ends(). In the order of their ends.
  const std::deque<LoggedLeaf>& leaves() const { return leaves_; }
  std::size_t dropped() const;  ///< those beyond the limits
  bool on_hpu() const;          ///< else all leaves are work of the host beside none on hpu
  bool full() const;            ///< one was dropped; also while leaves are added
  const LeafLogOptions& options() const { return options_; }

 private:
  const LeafKind* kind_of(const LeafRecord& leaf);

  LeafLogOptions options_;
  std::size_t most_;
  mutable std::mutex mutex_;
  std::unordered_multimap<std::size_t, std::unique_ptr<LeafKind>> kinds_;
  std::deque<LoggedLeaf> leaves_;
  std::size_t dropped_ = 0;
};

/// Numbers of the events that are open on this thread, innermost last: Kineto says them.
std::vector<std::uint64_t>& open_correlations();

// Sums of the device's time: of leaves by op, by module, by stack (phase, module's path, op).

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
