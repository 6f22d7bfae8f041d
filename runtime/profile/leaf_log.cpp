// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/leaf_log.h"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstdio>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/profile/owner.h"

namespace fp8::runtime {
namespace {

std::size_t hash_of(const LeafRecord& leaf) {
  std::size_t hash = std::hash<std::string_view>()(leaf.op);
  const auto add = [&](std::size_t value) { hash = c10::hash_combine(hash, value); };
  add(std::hash<std::string_view>()(leaf.module));
  add(std::hash<std::string_view>()(leaf.phase));
  add(static_cast<std::size_t>(leaf.backward));
  for (const auto& list : {leaf.inputs, leaf.outputs})
    for (const LeafTensor& t : list) {
      add(static_cast<std::size_t>(t.type));
      for (const auto size : t.sizes) add(static_cast<std::size_t>(size));
    }
  return hash;
}

bool same(std::span<const LeafTensor> a, const std::vector<LeafTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const LeafTensor& x, const LeafTensor& y) { return x.type == y.type && x.sizes == y.sizes; });
}

bool is_of(const LeafKind& kind, const LeafRecord& leaf) {
  return kind.op == leaf.op && kind.module == leaf.module && kind.phase == leaf.phase &&
         kind.backward == leaf.backward && kind.host == leaf.host && kind.device == leaf.device &&
         kind.bytes == leaf.bytes && kind.flops == leaf.flops && same(leaf.inputs, kind.inputs) &&
         same(leaf.outputs, kind.outputs);
}

}  // namespace

const LeafKind* LeafLog::kind_of(const LeafRecord& leaf) {
  const std::size_t hash = hash_of(leaf);
  const auto [first, last] = kinds_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (is_of(*it->second, leaf)) return it->second.get();
  if (kinds_.size() >= kMostKinds) return nullptr;
  auto kind = std::make_unique<LeafKind>();
  kind->op = leaf.op, kind->module = leaf.module, kind->phase = leaf.phase;
  kind->host = leaf.host, kind->backward = leaf.backward, kind->device = leaf.device;
  kind->inputs.assign(leaf.inputs.begin(), leaf.inputs.end());
  kind->outputs.assign(leaf.outputs.begin(), leaf.outputs.end());
  kind->bytes = leaf.bytes, kind->flops = leaf.flops;
  return kinds_.emplace(hash, std::move(kind))->second.get();
}

void LeafLog::leaf_ends(const LeafRecord& leaf) {
  if (leaf.device < 0) return;  // the same work on the host
  LoggedLeaf logged{.kind = nullptr, .begin_ns = leaf.begin_ns, .end_ns = std::max(leaf.begin_ns, leaf.end_ns)};
  const auto& open = open_correlations();
  if (!open.empty()) logged.correlation = open.back();
  logged.thread = static_cast<std::uint32_t>(leaf.thread);
  for (const auto& [name, value] : leaf.notes) {
    if (name == std::string_view("amax")) logged.amax = static_cast<float>(value);
    if (name == std::string_view("saturated")) logged.saturated = static_cast<float>(value);
    if (name == std::string_view("saturated_2")) logged.saturated_2 = static_cast<float>(value);
  }
  if (options_.memory) logged.in_use = memory_stats(leaf.device).InUse;
  const std::lock_guard lock(mutex_);
  if (leaves_.size() < most_) logged.kind = kind_of(leaf);
  if (logged.kind == nullptr) {
    ++dropped_;
    return;
  }
  leaves_.push_back(logged);
}

bool LeafLog::on_hpu() const {
  return std::ranges::any_of(kinds_, [](const auto& kind) { return !kind.second->host; });
}

std::size_t LeafLog::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

bool LeafLog::full() const { return dropped() > 0; }

std::vector<std::uint64_t>& open_correlations() {
  thread_local std::vector<std::uint64_t> open;
  return open;
}

namespace {

std::string shapes_of(const LeafKind& kind) {
  std::string out;
  for (const LeafTensor& t : kind.inputs) out += (out.empty() ? "[" : " [") + c10::Join(", ", t.sizes) + "]";
  return out;
}

std::int64_t value_of(const LeafSum& sum, SummaryOrder order) {
  constexpr std::int64_t LeafSum::*kValues[] = {&LeafSum::ns, &LeafSum::count, &LeafSum::flops, &LeafSum::bytes};
  return sum.*kValues[static_cast<std::size_t>(order)];
}

const char* title_of(SummaryBy by) {
  constexpr const char* kTitles[] = {"op", "op", "module", "stack"};
  return kTitles[static_cast<std::size_t>(by)];
}

std::string line_of(const std::string& name, std::size_t width, const LeafSum& sum, std::int64_t whole_ns) {
  char numbers[160];
  const double ns = std::max<double>(1, static_cast<double>(sum.ns));
  std::snprintf(numbers, sizeof numbers, "  %9lld  %12.3f  %6.2f %%  %9.2f  %8.2f\n", static_cast<long long>(sum.count),
                static_cast<double>(sum.ns) / 1e6,
                100.0 * static_cast<double>(sum.ns) / static_cast<double>(std::max<std::int64_t>(1, whole_ns)),
                static_cast<double>(sum.flops) / ns, static_cast<double>(sum.bytes) / ns);
  return name + std::string(width - name.size(), ' ') + numbers;
}

}  // namespace

void LeafSum::add(const LeafSum& other) {
  count += other.count, ns += other.ns, flops += other.flops, bytes += other.bytes;
}

void LeafSummary::add(const LeafLog& log) {
  std::unordered_map<const LeafKind*, LeafSum> of_kinds;
  for (const LoggedLeaf& leaf : log.leaves())
    of_kinds[leaf.kind].add({1, leaf.end_ns - leaf.begin_ns, leaf.kind->flops, leaf.kind->bytes});
  for (const auto& [kind, sum] : of_kinds)
    sums_[{kind->op, shapes_of(*kind), kind->module, kind->phase, kind->backward}].add(sum);
  dropped_ += static_cast<std::int64_t>(log.dropped());
}

LeafSum LeafSummary::total() const {
  LeafSum whole;
  for (const auto& [key, sum] : sums_) whole.add(sum);
  return whole;
}

std::string LeafSummary::text_of(const Key& key, SummaryBy by) {
  switch (by) {
    case SummaryBy::op: return key.op;
    case SummaryBy::op_and_shapes: return key.op + " " + key.shapes;
    case SummaryBy::module: return owner_of(key.module, key.phase);
    case SummaryBy::stack: break;
  }
  std::string stack = key.phase.empty() ? (key.backward ? "backward" : "none") : key.phase, module = key.module;
  std::ranges::replace(module, '.', ';');
  return stack + ";" + module + (module.empty() ? "" : ";") + key.op;
}

std::vector<std::pair<std::string, LeafSum>> LeafSummary::rows(SummaryBy by, SummaryOrder order) const {
  std::map<std::string, LeafSum> sums;
  for (const auto& [key, sum] : sums_) sums[text_of(key, by)].add(sum);
  std::vector<std::pair<std::string, LeafSum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows, std::ranges::greater(), [&](const auto& row) { return value_of(row.second, order); });
  return rows;
}

std::string LeafSummary::table(SummaryBy by, std::int64_t limit, SummaryOrder order) const {
  auto all = rows(by, order);
  const LeafSum whole = total();
  if (limit >= 0 && all.size() > static_cast<std::size_t>(limit)) {
    LeafSum rest;
    const std::size_t count = all.size() - static_cast<std::size_t>(limit);
    for (std::size_t i = static_cast<std::size_t>(limit); i < all.size(); ++i) rest.add(all[i].second);
    all.resize(static_cast<std::size_t>(limit));
    all.emplace_back("(" + std::to_string(count) + " more)", rest);
  }
  std::size_t width = 10;
  for (const auto& [name, sum] : all) width = std::max(width, name.size());
  const std::string title = title_of(by);
  std::string out =
      title + std::string(width - title.size(), ' ') + "      count            ms     share    GFLOP/s      GB/s\n";
  for (const auto& [name, sum] : all) out += line_of(name, width, sum, whole.ns);
  return out + line_of("total", width, whole, whole.ns);
}

std::string LeafSummary::folded() const {
  std::string out;
  for (const auto& [stack, sum] : rows(SummaryBy::stack)) {
    std::string line = stack;
    std::ranges::replace(line, ' ', '_');
    out += line + " " + std::to_string(std::max<std::int64_t>(1, sum.ns / 1000)) + "\n";
  }
  return out;
}

}  // namespace fp8::runtime
