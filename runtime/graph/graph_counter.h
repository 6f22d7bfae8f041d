// SPDX-License-Identifier: Apache-2.0
// How many graphs a program would compile on Gaudi, and where each new one comes from. Gaudi's lazy mode collects
// operations until the program marks a step or the host reads a value: that is a graph. One that differs from all
// before it, by its operations or by the sizes and dtypes of their operands, is compiled, which takes seconds there.
//
//   step 1    mm [8, 64] [64, 64]   gelu [8, 64]   mark      compiled
//   step 2    mm [8, 64] [64, 64]   gelu [8, 64]   mark      reused
//   step 3    mm [5, 64] [64, 64]   gelu [5, 64]   mark      compiled: module fc1, aten::mm [5, 64] [64, 64]
#pragma once
#include <map>
#include <mutex>
#include <unordered_set>

#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// A graph that is compiled, by the first operation in it that was never there with such operands.
struct NewGraph {
  std::int64_t step = 0;   ///< how many steps were done before
  std::string place, op;   ///< place: "module 'fc1'", of none "phase 'clip'", or ""
  std::string operands;    ///< "[8, 64] Float, [64, 64] Float"
  bool reordered = false;  ///< all its operations were there before: it is their order that is new

  /// "step 3: module 'fc1', aten::mm of [5, 64] Float, [64, 64] Float"
  std::string line() const;
};

struct CompiledGraphs {
  std::int64_t compiled = 0;                                               ///< graphs that differ from all before
  std::int64_t reused = 0;                                                 ///< runs of those that do not
  std::int64_t steps = 0;                                                  ///< that were marked as done
  std::map<std::uint64_t, std::int64_t> runs;                              ///< by graph
  std::vector<NewGraph> fresh;                                             ///< the first kMost of them
  std::map<std::pair<std::string, std::string>, std::int64_t> host_reads;  ///< of place and operation: how often

  /// "module 'fc1', aten::nonzero: 3 times"
  std::vector<std::string> host_read_lines() const;

  static constexpr std::size_t kMost = 1000;
};

/// Counts while it lives, on all threads; operations take the ways that listeners hear (leaf/leaf.h).
class GraphCounter final : LeafListener {
 public:
  /// on_graph: called where a graph ends, true for one that is compiled.
  explicit GraphCounter(std::function<void(bool)> on_graph = {});
  ~GraphCounter() override;
  GraphCounter& operator=(GraphCounter&&) = delete;

  /// Ends the graph; without operations since the last mark there is none. step: a step of the program is done.
  void mark(bool step);
  CompiledGraphs counts() const;

 private:
  struct First {
    std::string place, op, operands;
    bool known = true, has_module = false;
  };
  void leaf_ends(const LeafRecord& leaf) override;
  bool reads_on_host(const LeafRecord& leaf);
  void note_first(const LeafRecord& leaf, bool known);
  void end_graph(std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  std::function<void(bool)> on_graph_;
  CompiledGraphs counts_;
  std::uint64_t graph_ = 0;
  std::int64_t operations_ = 0;  ///< of the graph so far
  First first_;
  std::unordered_set<std::uint64_t> known_;                           ///< operations with their operands
  std::map<std::string, std::pair<bool, bool>, std::less<>> values_;  ///< of an op: its result is a value, sizes are
  std::unique_ptr<Listening> listening_;
};

/// What torch.hpu's scripts call htcore.mark_step(): ends the graph of each counter of the process.
void mark_step(bool step_done = false);

}  // namespace fp8::runtime
