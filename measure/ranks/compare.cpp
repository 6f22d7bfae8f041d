// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "fp8/measure/ranks/ranks.h"

namespace fp8::measure {
namespace {

double change_of(float before, float after) {
  if (before == after) return 1;
  return before == 0 ? std::numeric_limits<double>::infinity()
                     : static_cast<double>(after) / static_cast<double>(before);
}

double size_of_change(double ratio) {
  return ratio == 0 ? std::numeric_limits<double>::infinity() : std::abs(std::log(ratio));
}

Change compare_tensor(const std::string& module, const std::string& tensor, const Amax& before, const Amax& after) {
  Change change{module, tensor, 0, 0, 1};
  const auto largest = [](const Amax& a) { return a.empty() ? 0.0f : *std::max_element(a.begin(), a.end()); };
  change.before = largest(before);
  change.after = largest(after);
  change.ratio = change_of(change.before, change.after);
  if (before.size() != after.size()) return change;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double ratio = change_of(before[i], after[i]);
    if (size_of_change(ratio) > size_of_change(change.ratio)) change = {module, tensor, before[i], after[i], ratio};
  }
  return change;
}

/// All tensors of a node with their names.
std::vector<std::pair<std::string, const Amax*>> tensors_of(const Measurement& m) {
  std::vector<std::pair<std::string, const Amax*>> list;
  for (std::size_t i = 0; i < m.inputs.size(); ++i)
    list.emplace_back("inputs[" + std::to_string(i) + "]", &m.inputs[i]);
  if (m.outputs.has_value()) {
    for (std::size_t i = 0; i < m.outputs->size(); ++i)
      list.emplace_back("outputs[" + std::to_string(i) + "]", &(*m.outputs)[i]);
  }
  if (m.weight.has_value()) list.emplace_back("weight", &*m.weight);
  return list;
}

void compare_node(const Measurement& before, const Measurement& after, Difference& out) {
  std::map<std::string, const Amax*> there;
  for (const auto& [tensor, amax] : tensors_of(after)) there[tensor] = amax;
  for (const auto& [tensor, amax] : tensors_of(before)) {
    const auto it = there.find(tensor);
    if (it == there.end()) {
      out.missing.push_back(before.module + "." + tensor);
      continue;
    }
    out.changes.push_back(compare_tensor(before.module, tensor, *amax, *it->second));
    there.erase(it);
  }
  for (const auto& [tensor, amax] : there) out.added.push_back(after.module + "." + tensor);
}

}  // namespace

std::size_t Difference::beyond(double tolerance) const {
  const double allowed = std::log1p(tolerance);
  return static_cast<std::size_t>(std::count_if(changes.begin(), changes.end(),
                                                [&](const Change& c) { return size_of_change(c.ratio) > allowed; }));
}

Difference compare(const std::vector<Measurement>& before, const std::vector<Measurement>& after) {
  std::map<std::string, const Measurement*> by_name;
  for (const auto& m : after) by_name[m.module] = &m;
  Difference out;
  for (const auto& m : before) {
    const auto it = by_name.find(m.module);
    if (it == by_name.end()) {
      out.missing.push_back(m.module);
      continue;
    }
    compare_node(m, *it->second, out);
    by_name.erase(it);
  }
  for (const auto& m : after) {
    if (by_name.count(m.module) != 0) out.added.push_back(m.module);
  }
  std::stable_sort(out.changes.begin(), out.changes.end(),
                   [](const Change& a, const Change& b) { return size_of_change(a.ratio) > size_of_change(b.ratio); });
  return out;
}

std::vector<std::string> apply_cache_ranges(std::vector<Measurement>& modules) {
  std::map<std::string, const Measurement*> by_name;
  for (const auto& m : modules) by_name[m.module] = &m;
  const auto cache = [&](const std::string& parent, const char* name) -> const Measurement* {
    for (const std::string& candidate : {parent + name, parent + "latent_cache_k"}) {
      const auto it = by_name.find(candidate);
      if (it != by_name.end() && !it->second->inputs.empty()) return it->second;
    }
    return nullptr;
  };
  std::vector<std::string> changed;
  for (auto& m : modules) {
    const auto dot = m.module.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : m.module.substr(0, dot + 1),
                      last = m.module.substr(parent.size());
    if ((last != "matmul_qk" && last != "matmul_av") || m.inputs.size() < 2) continue;
    const Measurement* from = cache(parent, last == "matmul_qk" ? "k_cache" : "v_cache");
    if (from == nullptr || m.inputs[1] == from->inputs[0]) continue;
    m.inputs[1] = from->inputs[0];
    changed.push_back(m.module);
  }
  return changed;
}

}  // namespace fp8::measure
