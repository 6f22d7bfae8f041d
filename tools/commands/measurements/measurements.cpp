// SPDX-License-Identifier: Apache-2.0
// fp8 measurements: the group, what its commands share, merge and postprocess.
#include "fp8/tools/commands/measurements/measurements.h"

#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "fp8/measure/ranks/ranks.h"
#include "fp8/quant/scale_file/scale_file.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using measure::FileBytes;
using measure::StatsName;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{512} << 20;

// --- merge

struct MergeOptions {
  std::vector<fs::path> paths;
  fs::path out;
};

void merge(const MergeOptions& o, Context& context) {
  if (o.paths.size() < 2) throw UsageError("merge: PATH: found one measurement, allowed: two or more");
  std::vector<measure::MeasurementFile> files;
  std::vector<std::string> names;
  std::vector<StatsName> sets;
  StatsName out;
  for (const auto& path : o.paths) {
    const StatsName name = measure::find_measurement(path.string());
    if (name.is_scales())
      throw io::Error(path.string() +
                      ": found scales, expected a measurement; merge measurements and compute scales from them");
    if (!files.empty() && name.observer != out.observer) {
      throw io::Error(path.string() + ": found observer '" + name.observer + "', " + names[0] + " has '" +
                      out.observer + "'");
    }
    if (files.empty()) out = {(o.out / fs::path(name.prefix).filename()).string(), name.observer, "", name.rank};
    files.push_back(measure::read_measurements(name));
    names.push_back(name.json().string());
    sets.push_back(name);
  }
  for (const auto& name : sets) {
    std::error_code ignored;
    if (fs::equivalent(name.json(), out.json(), ignored) || fs::equivalent(name.npz(), out.npz(), ignored))
      throw io::Error(o.out.string() + ": " + short_name(out) +
                      " of it is one of the measurements to merge; name another folder");
  }
  auto merged = measure::merge(files, names);
  std::vector<std::string> warnings;
  auto written = merge_states(sets, out, merged, warnings);
  for (const auto& warning : warnings) context.warn(warning);
  const auto bytes = measure::measurement_bytes(out, merged);
  written.insert(written.begin(), bytes.begin(), bytes.end());
  Report report("merge", "");
  report.row({"measurements", std::to_string(files.size())});
  report.add("modules", "modules", merged.modules.size());
  const bool known = merged.num_samples.has_value();
  report.add("samples", "samples", known ? io::Json(*merged.num_samples) : io::Json(nullptr),
             known ? std::to_string(*merged.num_samples) : "unknown");
  write_and_report(context, written, report);
}

// --- postprocess

struct PostprocessOptions {
  fs::path path, out;
  bool keep = false;
};

void postprocess(const PostprocessOptions& o, Context& context) {
  std::vector<FileBytes> files;
  std::size_t changed = 0;
  Report report("postprocess", "");
  auto& json = report.json;
  json["changed"] = io::Json::array();
  for (const auto& name : sets_at(o.path)) {
    StatsName target = name;
    if (!o.out.empty()) target.prefix = (o.out / fs::path(name.prefix).filename()).string();
    std::vector<FileBytes> written;
    std::vector<std::string> modules;
    if (name.is_scales()) {
      auto scales = quant::read_scales(name);
      modules = quant::apply_cache_ranges(scales);
      written = quant::scale_bytes(target, scales);
    } else {
      auto measured = measure::read_measurements(name);
      modules = measure::apply_cache_ranges(measured.modules);
      written = measure::measurement_bytes(target, measured);
    }
    for (const auto& module : modules) json["changed"].push_back({{"file", short_name(name)}, {"module", module}});
    changed += modules.size();
    if (o.keep && o.out.empty()) {
      for (const auto& original : {name.json(), name.npz()}) {
        if (fs::exists(original))
          files.emplace_back(original.parent_path() / ("orig_" + original.filename().string()),
                             io::read_file(original, kMaxFileBytes));
      }
    }
    files.insert(files.end(), written.begin(), written.end());
  }
  if (changed == 0)
    context.warn(o.path.string() +
                 ": no matmul_qk or matmul_av has a cache beside it that measured another range; nothing changes");
  report.row({"products changed", std::to_string(changed)});
  write_and_report(context, files, report);
}

}  // namespace

std::vector<StatsName> sets_at(const fs::path& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  if (!folder) {
    if (auto name = measure::parse_stats_name(path.string())) {
      if (!name->exists()) throw io::Error(path.string() + ": no such file");
      return {*name};
    }
  }
  fs::path parent = folder ? path : path.parent_path();
  if (parent.empty()) parent = ".";
  std::vector<StatsName> found;
  if (fs::is_directory(parent, ignored)) {
    for (auto& name : measure::list_stats(parent)) {
      if (folder || fs::path(name.prefix).filename() == path.filename()) found.push_back(std::move(name));
    }
  }
  if (found.empty())
    throw io::Error(path.string() + ": expected measurement or scale files (*_hooks_maxabs*.json or .npz), found none");
  return found;
}

decltype(merged_states) merged_states;

std::vector<FileBytes> merge_states(const std::vector<StatsName>& names, const StatsName& target,
                                    measure::MeasurementFile& file, std::vector<std::string>& warnings) {
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (const auto& name : names) {
    if (fs::exists(measure::observer_states_path(name), ignored)) paths.push_back(measure::observer_states_path(name));
  }
  if (paths.empty()) return {};
  if (paths.size() != names.size()) {
    warnings.push_back(short_name(target) + ": only " + std::to_string(paths.size()) + " of " +
                       std::to_string(names.size()) +
                       " files have observers' states; the largest values are taken instead");
    return {};
  }
  const auto states = merged_states(paths, file);
  const auto path = measure::observer_states_path(target);
  return {{path, io::json_text(path, measure::to_json(states), -1)}};
}

std::string short_name(const StatsName& name) { return fs::path(name.base()).filename().string(); }

void write_and_report(const Context& context, const std::vector<FileBytes>& files, Report& report) {
  std::optional<KeepsWork> keeps(std::in_place);  // files that belong together
  const auto paths = measure::write_together(files);
  keeps.reset();
  report.json["out"] = io::Json::array();
  for (const auto& path : paths) report.add_entry("out", path.string(), {"out", path.string()});
  report.print(context);
}

Action add_measurements_merge(Options& options) {
  auto values = std::make_shared<MergeOptions>();
  options.paths("PATH", values->paths, "Measurements: folders, prefixes or files, two or more");
  options.path("--out", values->out, "Folder to write to; the files are called as those of the first PATH",
               Options::Need::required);
  return [values](Context& context) { merge(*values, context); };
}

Action add_measurements_postprocess(Options& options) {
  auto values = std::make_shared<PostprocessOptions>();
  options.path("PATH", values->path, "Folder, prefix or file of measurements and scales", Options::Need::required);
  options.path("--out", values->out, "Folder to write to (default: in place)");
  options.flag("-k,--keep-orig", values->keep, "Keep the originals as orig_*");
  return [values](Context& context) { postprocess(*values, context); };
}

std::vector<Command> measurements_commands() {
  return {
      {"merge", "Several calibrations of one model into one: the largest values, samples added",
       "fp8 measurements merge stats-news stats-code --out merged", add_measurements_merge},
      {"unify", "Files of many ranks into files of fewer", "fp8 measurements unify stats --ranks 2 --out unified",
       add_measurements_unify},
      {"expand", "A unified file into one per rank", "fp8 measurements expand unified --world-size 8 --out expanded",
       add_measurements_expand},
      {"postprocess", "vLLM: attention's products take the ranges that the key and value caches measured",
       "fp8 measurements postprocess stats/inc_output --keep-orig", add_measurements_postprocess},
      {"diff", "Compare two calibrations, module by module",
       "fp8 measurements diff stats-old stats-new --tolerance 0.05", add_measurements_diff},
      {"show", "What measurement and scale files hold", "fp8 measurements show stats", add_measurements_show},
  };
}

}  // namespace fp8::commands
