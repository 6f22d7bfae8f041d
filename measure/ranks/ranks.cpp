// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/ranks/ranks.h"

#include <set>

namespace fp8::measure {
namespace {

/// "P.w13_list.11" as ("P.w13_list", 11).
struct ExpertName {
  std::string list;
  std::int64_t id = -1;
};

ExpertName split(const std::string& module) {
  const auto dot = module.rfind('.');
  const std::string last = dot == std::string::npos ? "" : module.substr(dot + 1);
  if (last.empty() || last.size() > 7 || !std::ranges::all_of(last, [](char c) { return c >= '0' && c <= '9'; }))
    return {module, -1};
  return {module.substr(0, dot), std::stoll(last)};
}

/// Number of experts in each list of a file: its largest id + 1.
std::map<std::string, std::int64_t> expert_counts(const std::vector<std::string>& modules) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& module : modules) {
    if (!is_expert(module)) continue;
    const auto [list, id] = split(module);
    counts[list] = std::max(counts[list], id + 1);
  }
  return counts;
}

std::vector<std::string> names_of(const MeasurementFile& file) {
  std::vector<std::string> names = file.selected;
  for (const auto& m : file.modules) names.push_back(m.module);
  return names;
}

/// Tells the nodes of mixtures of experts.
class Mixtures {
 public:
  explicit Mixtures(const std::vector<std::string>& modules) {
    for (const auto& module : modules) {
      if (!is_expert(module)) continue;
      const std::string list = split(module).list;
      parents_.insert(list.substr(0, list.rfind('.')));
    }
  }
  bool contains(const Measurement& m) const {
    if (m.weight.has_value() || is_expert(m.module)) return false;
    if (parents_.contains(m.module)) return true;
    const auto dot = m.module.rfind('.');
    return io::lower(dot == std::string::npos ? m.module : m.module.substr(dot + 1)).find("moe") != std::string::npos;
  }

 private:
  std::set<std::string> parents_;
};

std::vector<Amax>* expert_values(Measurement& m, ExpertValues where) {
  if (where == ExpertValues::inputs) return &m.inputs;
  return m.outputs.has_value() ? &*m.outputs : nullptr;
}

void take_largest(Amax& into, const Amax& from, const std::string& where) {
  if (into.size() != from.size()) io::fail_at(where, "found {} values there and {} here", into.size(), from.size());
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void take_largest(std::vector<Amax>& into, const std::vector<Amax>& from, const std::string& where) {
  if (into.size() != from.size()) io::fail_at(where, "found {} tensors there and {} here", into.size(), from.size());
  for (std::size_t i = 0; i < into.size(); ++i) take_largest(into[i], from[i], where + "[" + std::to_string(i) + "]");
}

/// Elementwise, into `a`. What only one of them has stays.
void take_largest(Measurement& a, const Measurement& b, const std::string& where) {
  if (a.inputs.empty()) a.inputs = b.inputs;
  if (!b.inputs.empty()) take_largest(a.inputs, b.inputs, where + ".inputs");
  if (!a.outputs.has_value()) a.outputs = b.outputs;
  if (b.outputs.has_value()) take_largest(*a.outputs, *b.outputs, where + ".outputs");
  if (!a.weight.has_value()) a.weight = b.weight;
  if (b.weight.has_value()) take_largest(*a.weight, *b.weight, where + ".weight");
}

/// The values behind the first of `list` go behind those already in `into`; then the rest of the node is compared
/// without them.
void append_experts(Measurement& into, Measurement from, ExpertValues place, const std::string& where) {
  auto *a = expert_values(into, place), *b = expert_values(from, place);
  if (a == nullptr || b == nullptr || a->empty() || b->empty()) return take_largest(into, from, where);
  const std::vector<Amax> behind_a(a->begin() + 1, a->end()), behind_b(b->begin() + 1, b->end());
  a->resize(1);
  b->resize(1);
  take_largest(into, from, where);
  a->insert(a->end(), behind_a.begin(), behind_a.end());
  a->insert(a->end(), behind_b.begin(), behind_b.end());
}

std::string module_in_group(const std::string& module, std::size_t position,
                            const std::map<std::string, std::int64_t>& counts) {
  if (!is_expert(module)) return module;
  const auto [list, id] = split(module);
  return list + "." + std::to_string(static_cast<std::int64_t>(position) * counts.at(list) + id);
}

void require_same_counts(const std::vector<MeasurementFile>& group, const std::vector<std::string>& names,
                         const std::map<std::string, std::int64_t>& counts) {
  for (std::size_t i = 1; i < group.size(); ++i) {
    const auto other = expert_counts(names_of(group[i]));
    if (other == counts) continue;
    for (const auto& [list, count] : counts) {
      const auto it = other.find(list);
      const std::int64_t found = it == other.end() ? 0 : it->second;
      if (found != count) io::fail_at(names[i], "{}: found {} experts, rank {} has {}", list, found, names[0], count);
    }
    io::fail_at(names[i], "found experts that {} lacks", names[0]);
  }
}

class Modules {
 public:
  Measurement* find(const std::string& module) {
    const auto it = index_.find(module);
    return it == index_.end() ? nullptr : &list_[it->second];
  }
  /// Into the node of that name, elementwise the largest; the first of a name is added.
  void add(Measurement m, const std::string& file) {
    if (Measurement* known = find(m.module)) return take_largest(*known, m, file + ": " + m.module);
    index_[m.module] = list_.size();
    list_.push_back(std::move(m));
  }
  std::vector<Measurement> take() { return std::move(list_); }

 private:
  std::vector<Measurement> list_;
  std::map<std::string, std::size_t> index_;
};

/// Key-value caches of all files, elementwise the largest.
std::vector<Measurement> largest_caches(const std::vector<MeasurementFile>& files,
                                        const std::vector<std::string>& names) {
  Modules modules;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const auto& m : files[i].kv_cache) modules.add(m, names[i]);
  return modules.take();
}

void join(std::vector<std::string>& into, std::set<std::string>& seen, const std::string& name) {
  if (seen.insert(name).second) into.push_back(name);
}

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
  const auto largest = [](const Amax& a) { return a.empty() ? 0.0f : *std::ranges::max_element(a); };
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
  if (m.outputs.has_value())
    for (std::size_t i = 0; i < m.outputs->size(); ++i)
      list.emplace_back("outputs[" + std::to_string(i) + "]", &(*m.outputs)[i]);
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

bool is_expert(const std::string& module) {
  const auto [list, id] = split(module);
  return id >= 0 && io::lower(module).find("moe") != std::string::npos &&
         (list.ends_with(".w13_list") || list.ends_with(".w2_list"));
}

MeasurementFile unify(const std::vector<MeasurementFile>& group, const std::vector<std::string>& names,
                      const RankOptions& options, std::vector<std::string>& warnings) {
  if (group.empty()) io::fail_at("unify", "expected at least one file");
  io::ensure(names.size() == group.size(), "one name per file");
  MeasurementFile out = group[0];
  out.model.reset();  // each rank saw a part of the model
  out.selected.clear();
  const auto counts = expert_counts(names_of(group[0]));
  if (options.experts) require_same_counts(group, names, counts);
  const Mixtures mixtures(names_of(group[0]));
  Modules modules;
  std::map<std::string, std::size_t> files;
  std::set<std::string> seen;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    if (group[rank].mode != out.mode) io::fail_at(names[rank], "found another 'Mode' than in {}", names[0]);
    for (const auto& name : group[rank].selected)
      join(out.selected, seen, options.experts ? module_in_group(name, rank, counts) : name);
    if (group[rank].num_samples.has_value())
      out.num_samples = std::max(out.num_samples.value_or(0), *group[rank].num_samples);
    out.planned_samples = std::max(out.planned_samples, group[rank].planned_samples);
    for (const auto& node : group[rank].modules) {
      Measurement m = node;
      if (options.experts) m.module = module_in_group(node.module, rank, counts);
      if (!(options.experts && is_expert(node.module))) ++files[m.module];
      Measurement* known = options.experts && mixtures.contains(m) ? modules.find(m.module) : nullptr;
      if (known != nullptr)
        append_experts(*known, std::move(m), options.values, names[rank] + ": " + node.module);
      else
        modules.add(std::move(m), names[rank]);
    }
  }
  out.modules = modules.take();
  out.kv_cache = largest_caches(group, names);
  std::size_t partial = 0;
  std::string first;
  for (const auto& [module, count] : files) {
    if (count == group.size()) continue;
    if (partial++ == 0) first = module;
  }
  if (partial > 0)
    warnings.push_back(io::message("{} and its group: {} nodes are not in every rank's file (the first is '{}')",
                                   names[0], partial, first));
  return out;
}

MeasurementFile expand(const MeasurementFile& file, const configs::Rank& rank, const RankOptions& options,
                       const std::string& name) {
  MeasurementFile out = file;
  out.local_rank = rank.index;
  out.model.reset();
  out.modules.clear();
  out.selected.clear();
  const auto counts = expert_counts(names_of(file));
  const Mixtures mixtures(names_of(file));
  const auto share = [&](std::int64_t experts, const std::string& what) {
    if (experts % rank.world != 0)
      io::fail_at(name, "{}: {} experts can't be shared out to {} ranks", what, experts, rank.world);
    return experts / rank.world;
  };
  /// The expert's name on this rank; empty: another rank's.
  const auto local = [&](const std::string& module) -> std::string {
    if (!is_expert(module)) return module;
    const auto [list, id] = split(module);
    const std::int64_t mine = share(counts.at(list), list);
    return id / mine == rank.index ? list + "." + std::to_string(id % mine) : "";
  };
  for (const auto& selected : file.selected)
    if (const auto kept = local(selected); !kept.empty()) out.selected.push_back(kept);
  for (const auto& node : file.modules) {
    Measurement m = node;
    m.module = local(node.module);
    if (m.module.empty()) continue;
    auto* values = expert_values(m, options.values);
    if (mixtures.contains(node) && values != nullptr && values->size() > 1) {
      const std::int64_t mine = share(static_cast<std::int64_t>(values->size()) - 1, node.module),
                         begin = 1 + mine * rank.index;
      std::vector<Amax> kept = {(*values)[0]};
      kept.insert(kept.end(), values->begin() + begin, values->begin() + begin + mine);
      *values = std::move(kept);
    }
    out.modules.push_back(std::move(m));
  }
  return out;
}

MeasurementFile merge(const std::vector<MeasurementFile>& files, const std::vector<std::string>& names) {
  if (files.empty()) io::fail_at("merge", "expected at least one measurement");
  io::ensure(names.size() == files.size(), "one name per file");
  MeasurementFile out = files[0];
  out.selected.clear();
  Modules modules;
  std::set<std::string> seen;
  std::int64_t samples = 0, planned = 0;
  bool counted = true;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto& file = files[i];
    if (file.mode != out.mode) io::fail_at(names[i], "found another 'Mode' than in {}", names[0]);
    if (file.local_rank != out.local_rank)
      io::fail_at(names[i], "found another 'LocalRank' than in {}; unify ranks, merge calibrations", names[0]);
    if (out.model.has_value() && file.model.has_value()) require_same_model(*out.model, *file.model, names[i]);
    if (!out.model.has_value()) out.model = file.model;
    counted = counted && file.num_samples.has_value();
    samples += file.num_samples.value_or(0);
    planned += file.planned_samples.value_or(file.num_samples.value_or(0));
    for (const auto& name : file.selected) join(out.selected, seen, name);
    for (const auto& m : file.modules) modules.add(m, names[i]);
  }
  out.modules = modules.take();
  out.kv_cache = largest_caches(files, names);
  out.num_samples = counted ? std::optional<std::int64_t>(samples) : std::nullopt;  // unknown somewhere: unknown in all
  out.planned_samples = counted && planned > samples ? std::optional<std::int64_t>(planned) : std::nullopt;
  return out;
}

std::size_t Difference::beyond(double tolerance) const {
  const double allowed = std::log1p(tolerance);
  return static_cast<std::size_t>(
      std::ranges::count_if(changes, [&](const Change& c) { return size_of_change(c.ratio) > allowed; }));
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
  for (const auto& m : after)
    if (by_name.contains(m.module)) out.added.push_back(m.module);
  std::ranges::stable_sort(
      out.changes, [](const Change& a, const Change& b) { return size_of_change(a.ratio) > size_of_change(b.ratio); });
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
