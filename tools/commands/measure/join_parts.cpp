// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/measure/join_parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/observers/observer.h"
#include "fp8/measure/ranks/ranks.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/measure/measure_mark.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using measure::FileBytes;
using measure::StatsName;

constexpr std::uint64_t kMostBytes = std::uint64_t{512} << 20;

/// Of a part that had no samples nothing is known.
bool is_empty(const measure::MeasurementFile& file) { return file.num_samples == 0 && file.modules.empty(); }

/// The file of a part that was finished by a run like this one.
measure::MeasurementFile read_part(const StatsName& name, const std::string& mark) {
  auto file = measure::read_measurements(name);
  file.local_rank.reset();
  std::error_code error;
  if (is_empty(file) || !fs::exists(name.fingerprint(), error) || has_mark(name, file, mark)) return file;
  const io::Json fingerprint = io::read_json(name.fingerprint());
  const bool finished = fingerprint.is_object() && fingerprint.contains("run");
  throw io::Error(name.json().string() +
                  (finished ? ": is of other files, samples or options than these"
                            : ": was cut short before all of its samples were measured") +
                  "; measure it again");
}

/// In the order in which one process has them: that of its list of modules.
void sort_modules(measure::MeasurementFile& file) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < file.selected.size(); ++i) places.emplace(file.selected[i], i);
  const auto place = [&](const measure::Measurement& m) {
    const auto found = places.find(m.module);
    return found != places.end() ? found->second : places.size();
  };
  std::stable_sort(file.modules.begin(), file.modules.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

/// What the observers know of all samples, into `file` and as bytes; none where they keep nothing.
std::optional<FileBytes> join_states(const std::vector<StatsName>& parts, const StatsName& target,
                                     measure::MeasurementFile& file) {
  if (!measure::find_observer(target.observer).keeps_state) return std::nullopt;
  std::optional<measure::ObserverStates> all;
  for (const auto& part : parts) {
    const auto path = measure::observer_states_path(part);
    auto states = measure::read_observer_states(path);
    if (!all.has_value()) {
      all = std::move(states);
      continue;
    }
    for (auto& [module, node] : states.nodes) {  // all parts looked at the same weights, which count once
      const auto known = all->nodes.find(module);
      if (known != all->nodes.end() && known->second.contains("weight")) node.erase("weight");
    }
    measure::merge(*all, states, path.string());
  }
  if (!all.has_value()) return std::nullopt;
  measure::apply(*all, file, target.base());
  const auto path = measure::observer_states_path(target);
  return FileBytes{path, io::json_text(path, measure::to_json(*all), -1)};
}

/// Moves files away that are not what is going to be written there.
void back_up(const std::vector<FileBytes>& files, const StatsName& target) {
  std::vector<fs::path> others;
  std::error_code error;
  bool all_the_same = true;
  for (const auto& [path, bytes] : files) {
    if (!fs::is_regular_file(path, error)) continue;
    others.push_back(path);
    all_the_same = all_the_same && io::read_file(path, kMostBytes) == bytes;
  }
  for (const auto& path : {target.kv_cache(), target.fingerprint(), measure::observer_states_path(target)}) {
    const bool written = std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.first == path; });
    if (!written && fs::is_regular_file(path, error)) others.push_back(path), all_the_same = false;
  }
  if (others.empty() || all_the_same) return;
  const fs::path prefix = target.prefix;
  const fs::path backup = measure::backup_path(prefix.parent_path(), prefix.filename().string());
  fs::create_directory(backup, error);
  for (const auto& path : others) {
    fs::rename(path, backup / path.filename(), error);
    if (error) io::fail(path, "can't be moved to a backup: " + error.message());
  }
}

}  // namespace

JoinedParts join_parts(const std::vector<Part>& parts, const StatsName& target, const std::string& mark) {
  std::vector<measure::MeasurementFile> files;
  std::vector<StatsName> measured;
  std::vector<std::string> names;
  for (const auto& [name, its_mark] : parts) {
    auto file = read_part(name, its_mark);
    if (is_empty(file)) continue;
    files.push_back(std::move(file));
    measured.push_back(name);
    names.push_back(name.json().string());
  }
  if (files.empty()) throw io::Error(target.base() + ": no part has any samples");
  auto merged = measure::merge(files, names);
  if (merged.mode == measure::MeasurementMode::shape) {
    merged.modules = files.back().modules;  // of the last call, which is the last part's
    merged.kv_cache = files.back().kv_cache;
  }
  sort_modules(merged);
  const auto states = join_states(measured, target, merged);
  auto bytes = measure::measurement_bytes(target, merged);
  for (auto& [path, text] : bytes) {
    if (path == target.fingerprint()) text = with_mark(path, text, mark);
  }
  if (states.has_value()) bytes.push_back(*states);
  back_up(bytes, target);
  // The mark comes last: with it, all the rest is there.
  const auto rest = std::stable_partition(bytes.begin(), bytes.end(),
                                          [&](const FileBytes& file) { return file.first != target.fingerprint(); });
  const KeepsWork keeps;  // files that belong together
  auto out = measure::write_together({bytes.begin(), rest});
  for (const auto& path : measure::write_together({rest, bytes.end()})) out.push_back(path);
  return {parts.size(), merged.modules.size(), merged.num_samples.value_or(0), std::move(out)};
}

}  // namespace fp8::commands
