// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/leaf_log.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "fp8/runtime/device/allocator.h"

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

}  // namespace fp8::runtime
