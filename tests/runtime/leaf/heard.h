// SPDX-License-Identifier: Apache-2.0
// The leaves that a piece of code makes, and what must hold of all of them: they come one after the other on a thread,
// none within another.
#pragma once
#include <mutex>

#include "fp8/runtime/leaf/leaf.h"
#include "support/values.h"

namespace fp8::test {

struct Heard {
  std::string op, module, phase, line;
  bool host, backward;
  std::size_t inputs, outputs;
  std::int64_t bytes, flops, begin_ns, end_ns;
  std::uint64_t thread;
};

class HeardLeaves : public runtime::LeafListener {
 public:
  void leaf_begins(const runtime::LeafRecord& leaf) override {
    const std::lock_guard lock(mutex_);
    begun.emplace_back(leaf.op);
  }
  void leaf_ends(const runtime::LeafRecord& leaf) override {
    const std::lock_guard lock(mutex_);
    heard.push_back({std::string(leaf.op), std::string(leaf.module), std::string(leaf.phase), trace_line(leaf),
                     leaf.host, leaf.backward, leaf.inputs.size(), leaf.outputs.size(), leaf.bytes, leaf.flops,
                     leaf.begin_ns, leaf.end_ns, leaf.thread});
  }
  std::vector<std::string> begun;
  std::vector<Heard> heard;

  std::vector<std::string> ops() const {
    return collected(heard, [](const auto& leaf) { return leaf.op; });
  }

  /// Those of an op, in order.
  std::vector<Heard> of(const std::string& op) const {
    std::vector<Heard> found;
    std::ranges::copy_if(heard, std::back_inserter(found), [&](const Heard& leaf) { return leaf.op == op; });
    return found;
  }

  void expect_none_within_another() const {
    for (std::size_t i = 0; i < heard.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        EXPECT_TRUE(heard[i].thread != heard[k].thread || heard[i].begin_ns >= heard[k].end_ns)
            << heard[k].line << " is within " << heard[i].line;
  }

 private:
  std::mutex mutex_;
};

/// The events while f() runs.
template <class F>
HeardLeaves& heard_of(F&& f) {
  static std::vector<std::unique_ptr<HeardLeaves>> all;
  HeardLeaves& listener = *all.emplace_back(std::make_unique<HeardLeaves>());
  const runtime::Listening listening(listener);
  f();
  return listener;
}

}  // namespace fp8::test
