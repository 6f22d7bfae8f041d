// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/graph/graph_counter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/lazy/lazy_mode.h"

namespace fp8::runtime {
namespace {

struct Counters {
  std::atomic<int> alive = 0;
  std::mutex mutex;
  std::vector<GraphCounter*> all;
};

Counters& counters() {
  static Counters& counters = *new Counters;  // not destroyed: threads may outlive main()
  return counters;
}

std::uint64_t operation_key(const LeafRecord& leaf) {
  std::uint64_t hash = std::hash<std::string_view>()(leaf.op);
  for (const LeafTensor& t : leaf.inputs) {
    hash = c10::hash_combine(hash, static_cast<std::uint64_t>(t.type));
    hash = c10::hash_combine(hash, t.sizes.size());
    for (const auto size : t.sizes) hash = c10::hash_combine(hash, static_cast<std::uint64_t>(size));
  }
  // Results follow from operands; of what has none they are what differs.
  for (const LeafTensor& t : leaf.inputs.empty() ? leaf.outputs : std::span<const LeafTensor>())
    for (const auto size : t.sizes) hash = c10::hash_combine(hash, static_cast<std::uint64_t>(size));
  return hash;
}

/// A batch on its way to the device is an input of the graph, and what comes back a result of it.
bool is_transfer(const LeafRecord& leaf) {
  const auto on_host = [](const LeafTensor& t) { return !t.on_hpu; };
  return leaf.op == "aten::copy_" &&
         (std::ranges::any_of(leaf.inputs, on_host) || std::ranges::any_of(leaf.outputs, on_host));
}

std::string operands_of(const LeafRecord& leaf) {
  const auto& shown = leaf.inputs.empty() ? leaf.outputs : leaf.inputs;
  constexpr std::size_t kMostShown = 4;
  std::string text;
  for (const LeafTensor& t : shown.first(std::min(shown.size(), kMostShown)))
    text += (text.empty() ? "[" : ", [") + c10::Join(", ", t.sizes) + "] " + c10::toString(t.type);
  return shown.size() <= kMostShown ? text : text + ", ...";
}

std::string place_of(const LeafRecord& leaf) {
  if (!leaf.module.empty()) return "module '" + std::string(leaf.module) + "'";
  return leaf.phase.empty() ? "" : "phase '" + std::string(leaf.phase) + "'";
}

std::string before_op(const std::string& place) { return place.empty() ? "" : place + ", "; }

/// (the result is a value that the host reads, its sizes depend on values), as the operator's schema says.
std::pair<bool, bool> depends_on_values(std::string_view op) {
  const auto point = op.find('.');
  const std::string overload(point == std::string_view::npos ? "" : op.substr(point + 1));
  const auto schema = c10::Dispatcher::singleton().findSchema({std::string(op.substr(0, point)), overload});
  if (!schema.has_value()) return {false, false};
  return {schema->hasTag(at::Tag::data_dependent_output), schema->hasTag(at::Tag::dynamic_output_shape)};
}

}  // namespace

std::string NewGraph::line() const {
  return io::message("step {}: {}{} of {}{}", step + 1, before_op(place), op, operands,
                     reordered ? ", known operations in another order" : "");
}

std::vector<std::string> CompiledGraphs::host_read_lines() const {
  std::vector<std::string> lines;
  for (const auto& [read, times] : host_reads)
    lines.push_back(io::message("{}{}: {} times", before_op(read.first), read.second, times));
  return lines;
}

GraphCounter::GraphCounter(std::function<void(bool)> on_graph) : on_graph_(std::move(on_graph)) {
  LeafListener& leaves = *this;
  listening_ = std::make_unique<Listening>(leaves);
  auto& [alive, mutex, all] = counters();
  const std::lock_guard lock(mutex);
  all.push_back(this);
  ++alive;
}

GraphCounter::~GraphCounter() {
  auto& [alive, mutex, all] = counters();
  const std::lock_guard lock(mutex);
  std::erase(all, this);
  --alive;
}

bool GraphCounter::reads_on_host(const LeafRecord& leaf) {
  const auto on_hpu = [](const LeafTensor& t) { return t.on_hpu; };
  if (std::ranges::none_of(leaf.inputs, on_hpu)) return false;
  auto known = values_.find(leaf.op);
  if (known == values_.end()) known = values_.emplace(leaf.op, depends_on_values(leaf.op)).first;
  const auto [gives_value, gives_sizes] = known->second;
  // Indices and weights beside the first operand decide no sizes; masks do.
  const auto is_mask = [](const LeafTensor& t) { return t.type == at::kBool || t.type == at::kByte; };
  const auto others = leaf.inputs.subspan(1);
  return gives_value || (gives_sizes && (others.empty() || std::ranges::any_of(others, is_mask))) ||
         !std::ranges::all_of(leaf.outputs, on_hpu);
}

void GraphCounter::note_first(const LeafRecord& leaf, bool known) {
  // Of new operations the first with a module; else the first new one, else the first.
  const bool better = operations_ == 0 || (first_.known && !known) ||
                      (first_.known == known && !first_.has_module && !leaf.module.empty());
  if (better) first_ = {place_of(leaf), std::string(leaf.op), operands_of(leaf), known, !leaf.module.empty()};
}

void GraphCounter::leaf_ends(const LeafRecord& leaf) {
  if (leaf.host) return;
  std::unique_lock lock(mutex_);
  if (!is_transfer(leaf)) {
    const std::uint64_t hash = operation_key(leaf);
    note_first(leaf, !known_.insert(hash).second);
    graph_ = c10::hash_combine(graph_, hash);
    ++operations_;
  }
  if (!reads_on_host(leaf)) return;
  ++counts_.host_reads[{place_of(leaf), std::string(leaf.op)}];
  end_graph(lock);
}

void GraphCounter::end_graph(std::unique_lock<std::mutex>& lock) {
  if (operations_ == 0) return;
  const bool is_new = ++counts_.runs[graph_] == 1;
  ++(is_new ? counts_.compiled : counts_.reused);
  if (is_new && counts_.fresh.size() < CompiledGraphs::kMost)
    counts_.fresh.push_back(
        {counts_.steps, std::move(first_.place), std::move(first_.op), std::move(first_.operands), first_.known});
  graph_ = 0, operations_ = 0;
  lock.unlock();
  if (on_graph_) on_graph_(is_new);
  lock.lock();
}

void GraphCounter::mark(bool step) {
  std::unique_lock lock(mutex_);
  end_graph(lock);
  counts_.steps += step;
}

CompiledGraphs GraphCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void mark_step(bool step_done) {
  auto& [alive, mutex, all] = counters();
  const bool counted = alive.load(std::memory_order_relaxed) != 0;
  end_lazy_step(/*sync=*/counted);  // its operations are the graph's
  if (!counted) return;
  const std::lock_guard lock(mutex);
  for (GraphCounter* counter : all) counter->mark(step_done);
}

}  // namespace fp8::runtime
