// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/leaf_summary.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "fp8/runtime/profile/owner.h"

namespace fp8::runtime {
namespace {

std::string shapes_of(const LeafKind& kind) {
  std::string out;
  for (const LeafTensor& t : kind.inputs) out += (out.empty() ? "[" : " [") + c10::Join(", ", t.sizes) + "]";
  return out;
}

std::int64_t value_of(const LeafSum& sum, SummaryOrder order) {
  switch (order) {
    case SummaryOrder::count:
      return sum.count;
    case SummaryOrder::flops:
      return sum.flops;
    case SummaryOrder::bytes:
      return sum.bytes;
    default:
      return sum.ns;
  }
}

const char* title_of(SummaryBy by) {
  switch (by) {
    case SummaryBy::module:
      return "module";
    case SummaryBy::stack:
      return "stack";
    default:
      return "op";
  }
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
    case SummaryBy::op:
      return key.op;
    case SummaryBy::op_and_shapes:
      return key.op + " " + key.shapes;
    case SummaryBy::module:
      return owner_of(key.module, key.phase);
    case SummaryBy::stack:
      break;
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
