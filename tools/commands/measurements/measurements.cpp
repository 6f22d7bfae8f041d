// SPDX-License-Identifier: Apache-2.0
// fp8 measurements: the group, what its commands share, merge, postprocess, diff and show.
#include "fp8/tools/commands/measurements/measurements.h"

#include <fmt/format.h>

#include <system_error>

#include "fp8/tools/commands/inspect/inspect.h"

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
  bool overwrite = false;
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
      io::fail<io::Error>("{}: found scales, expected a measurement; merge measurements and compute scales from them",
                          path.string());
    if (!sets.empty() && name.observer != out.observer)
      io::fail<io::Error>("{}: found observer '{}', {} has '{}'", path.string(), name.observer, names[0], out.observer);
    if (sets.empty()) out = {(o.out / fs::path(name.prefix).filename()).string(), name.observer, "", name.rank};
    names.push_back(name.json().string());
    sets.push_back(name);
  }
  for (const auto& name : sets) {
    std::error_code ignored;
    if (fs::equivalent(name.json(), out.json(), ignored) || fs::equivalent(name.npz(), out.npz(), ignored))
      io::fail<io::Error>("{}: {} of it is one of the measurements to merge; name another folder", o.out.string(),
                          short_name(out));
  }
  refuse_existing(out, o.overwrite);
  for (const auto& name : sets) files.push_back(measure::read_measurements(name));
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
  bool keep = false, overwrite = false;
};

void postprocess(const PostprocessOptions& o, Context& context) {
  std::vector<FileBytes> files;
  std::size_t changed = 0;
  Report report("postprocess", "");
  auto& json = report.json;
  json["changed"] = io::Json::array();
  for (const auto& name : sets_at(o.path)) {
    StatsName target = name;
    if (!o.out.empty()) {
      target.prefix = (o.out / fs::path(name.prefix).filename()).string();
      refuse_existing(target, o.overwrite);
    }
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
        if (!fs::exists(original)) continue;
        const fs::path kept = original.parent_path() / ("orig_" + original.filename().string());
        refuse_existing(kept, o.overwrite);
        files.emplace_back(kept, io::read_file(original, kMaxFileBytes));
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

// --- diff

struct DiffOptions {
  fs::path before, after, html;
  double tolerance = 0;
  std::int64_t top = 20;
};

/// The set that `path` means: a scale file by its own name, else a measurement.
StatsName one_set(const fs::path& path) {
  if (!fs::is_directory(path))
    if (auto name = measure::parse_stats_name(path.string())) return *name;
  return measure::find_measurement(path.string());
}

std::vector<measure::Measurement> nodes_of(const StatsName& name) {
  return name.is_scales() ? quant::as_nodes(quant::read_scales(name)) : measure::read_measurements(name).modules;
}

/// The page of inspect, of two calibrations.
io::Json diff_report(const DiffOptions& o, const measure::Difference& d) {
  io::Json page = {{"kind", "diff"},
                   {"title", o.before.string() + " -> " + o.after.string()},
                   {"modules", io::Json::array()},
                   {"skipped", io::Json::array()}};
  double most = 1;
  std::size_t changed = 0;
  for (const auto& c : d.changes) {
    const double change = c.ratio > 0 ? std::max(c.ratio, 1 / c.ratio) : std::numeric_limits<double>::infinity();
    most = std::max(most, change);
    changed += c.ratio == 1 ? 0 : 1;
    page["modules"].push_back({{"name", c.module},
                               {"type", c.tensor},
                               {"before", io::number_or_null(c.before)},
                               {"after", io::number_or_null(c.after)},
                               {"ratio", std::isfinite(c.ratio) ? io::Json(c.ratio) : io::Json("from 0")},
                               {"change", std::isfinite(change) ? io::Json(change) : io::Json("from or to 0")}});
  }
  auto summary = fmt::format("{} tensors compared, ", d.changes.size());
  summary += changed == 0          ? "all the same"
             : std::isfinite(most) ? fmt::format("{} changed, all within a factor of {:.3g}", changed, most)
                                   : fmt::format("{} changed, some from or to 0", changed);
  if (!d.missing.empty()) summary += fmt::format("; {} are gone", d.missing.size());
  if (!d.added.empty()) summary += fmt::format("; {} are new", d.added.size());
  page["summary"] = summary;
  for (const auto& name : d.missing) page["skipped"].push_back({{"name", name}, {"reason", "only before"}});
  for (const auto& name : d.added) page["skipped"].push_back({{"name", name}, {"reason", "only after"}});
  page["skipped_title"] = "In one of the two alone";
  return page;
}

void diff(const DiffOptions& o, Context& context) {
  const StatsName a = one_set(o.before), b = one_set(o.after);
  if (a.is_scales() != b.is_scales())
    io::fail<io::Error>("{}: found {}, {} is the other kind", short_name(b), b.is_scales() ? "scales" : "a measurement",
                        short_name(a));
  const auto d = measure::compare(nodes_of(a), nodes_of(b));
  const auto beyond = d.beyond(o.tolerance);
  Report report({"module", "tensor", ">before", ">after", ">ratio"});
  report.json = {{"before", a.json().string()},
                 {"after", b.json().string()},
                 {"tensors", d.changes.size()},
                 {"beyond_tolerance", beyond},
                 {"same", d.same(o.tolerance)},
                 {"missing", d.missing},
                 {"added", d.added},
                 {"changes", io::Json::array()}};
  std::int64_t shown = 0;
  for (const auto& c : d.changes) {
    if (c.ratio == 1) break;  // the rest is equal: sorted by change
    report.json["changes"].push_back({{"module", c.module},
                                      {"tensor", c.tensor},
                                      {"before", c.before},
                                      {"after", c.after},
                                      {"ratio", io::number_or_null(c.ratio)}});
    if (shown++ < o.top)
      report.row({one_line(c.module), c.tensor, fmt::format("{:.6g}", c.before), fmt::format("{:.6g}", c.after),
                  fmt::format("{:.4f}", c.ratio)});
  }
  std::string& text = report.below;
  if (shown > o.top) text += fmt::format("... and {} more (--top, --json)\n", shown - o.top);
  for (const auto& name : d.missing) text += "only in " + o.before.string() + ": " + one_line(name) + "\n";
  for (const auto& name : d.added) text += "only in " + o.after.string() + ": " + one_line(name) + "\n";
  text += fmt::format("{} tensors compared, {} changed, {} by more than {:g} %\n", d.changes.size(), shown, beyond,
                      o.tolerance * 100);
  if (!o.html.empty()) {
    write_report_page(o.html, diff_report(o, d));
    report.json["html"] = o.html.string();
  }
  report.print(context);
  if (!d.same(o.tolerance))
    throw io::Error(fmt::format("the calibrations differ: {} tensors by more than {:g} %, {} missing, {} added", beyond,
                                o.tolerance * 100, d.missing.size(), d.added.size()));
}

// --- show

void show(const fs::path& path, Context& context) {
  const auto sets = sets_at(path);
  if (sets.size() == 1) {
    const auto inspection = inspect_measurement(fs::exists(sets[0].json()) ? sets[0].json() : sets[0].npz(), true);
    context.result(inspection.json, inspection.text + inspection.all);
    return;
  }
  Report report({"files", "kind", ">rank", ">nodes", ">samples"});
  report.json["sets"] = io::Json::array();
  for (const auto& name : sets) {
    std::string kind = "scales";
    std::size_t nodes = 0;
    io::Json count = nullptr;
    if (name.is_scales()) {
      nodes = quant::read_scales(name).modules.size();
    } else {
      const auto file = measure::read_measurements(name);
      kind = file.mode == measure::MeasurementMode::shape ? "shapes" : "measurement";
      nodes = file.modules.size();
      if (file.num_samples.has_value()) count = *file.num_samples;
    }
    const std::string rank = name.rank.has_value() ? fmt::format("{} of {}", name.rank->index, name.rank->world) : "-";
    report.add_entry("sets",
                     {{"files", name.base()},
                      {"kind", kind},
                      {"observer", name.observer},
                      {"method", name.method},
                      {"rank", rank},
                      {"nodes", nodes},
                      {"samples", count}},
                     {short_name(name), kind, rank, std::to_string(nodes), count.is_null() ? "-" : count.dump()});
  }
  report.print(context);
}

Action add_measurements_merge(Options& options) {
  auto values = std::make_shared<MergeOptions>();
  options.paths("PATH", values->paths, "Measurements: folders, prefixes or files, two or more");
  options.reach("PATH", io::Reach::beside);
  options.path("--out", values->out, io::Reach::folder,
               "Folder to write to; the files are called as those of the first PATH", Options::Need::required);
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  return [values](Context& context) { merge(*values, context); };
}

Action add_measurements_postprocess(Options& options) {
  auto values = std::make_shared<PostprocessOptions>();
  options.path("PATH", values->path, io::Reach::change, "Folder, prefix or file of measurements and scales",
               Options::Need::required);
  options.path("--out", values->out, io::Reach::folder, "Folder to write to; without it, in place");
  options.flag("-k,--keep-orig", values->keep, "In place, with the originals kept as orig_*");
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  options.one_of({"--out", "--keep-orig", "--overwrite"});
  return [values](Context& context) { postprocess(*values, context); };
}

Action add_measurements_diff(Options& options) {
  auto values = std::make_shared<DiffOptions>();
  options.path("BEFORE", values->before, io::Reach::beside, "Measurement or scale files: a folder, prefix or file",
               Options::Need::required);
  options.path("AFTER", values->after, io::Reach::beside, "The same, to compare with", Options::Need::required);
  options.number("--tolerance", values->tolerance, 0, 1e6, "Exit code 1 if a value changes by more: 0.05 is 5 %");
  options.integer("--top", values->top, 1, 1'000'000'000, "Rows to print");
  options.output("--html", values->html, "Write a page with a heat map of the changes and a table of all there");
  return [values](Context& context) { diff(*values, context); };
}

Action add_measurements_show(Options& options) {
  auto path = std::make_shared<fs::path>();
  options.path("PATH", *path, io::Reach::beside, "Folder (all its sets in one table), prefix or file (its values)",
               Options::Need::required);
  return [path](Context& context) { show(*path, context); };
}

}  // namespace

std::vector<StatsName> sets_at(const fs::path& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  if (!folder) {
    if (auto name = measure::parse_stats_name(path.string())) {
      if (!name->exists()) io::fail<io::Error>("{}: no such file", path.string());
      return {*name};
    }
  }
  fs::path parent = folder ? path : path.parent_path();
  if (parent.empty()) parent = ".";
  std::vector<StatsName> found;
  if (fs::is_directory(parent, ignored)) {
    for (auto& name : measure::list_stats(parent))
      if (folder || fs::path(name.prefix).filename() == path.filename()) found.push_back(std::move(name));
  }
  if (found.empty())
    io::fail<io::Error>("{}: expected measurement or scale files (*_hooks_maxabs*.json or .npz), found none",
                        path.string());
  return found;
}

decltype(merged_states) merged_states;

std::vector<FileBytes> merge_states(const std::vector<StatsName>& names, const StatsName& target,
                                    measure::MeasurementFile& file, std::vector<std::string>& warnings) {
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (const auto& name : names)
    if (fs::exists(measure::observer_states_path(name), ignored)) paths.push_back(measure::observer_states_path(name));
  if (paths.empty()) return {};
  if (paths.size() != names.size()) {
    warnings.push_back(
        io::message("{}: only {} of {} files have observers' states; the largest values are taken instead",
                    short_name(target), paths.size(), names.size()));
    return {};
  }
  const auto states = merged_states(paths, file);
  const auto path = measure::observer_states_path(target);
  return {{path, io::json_text(path, measure::to_json(states), -1)}};
}

void refuse_existing(const StatsName& name, bool overwrite) {
  for (const auto& file : {name.json(), name.npz(), name.mod_list(), name.fingerprint(), name.kv_cache(),
                           measure::observer_states_path(name)})
    refuse_existing(file, overwrite);
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

std::vector<Command> measurements_commands() {
  return {
      {"merge", "Several calibrations of one model into one: the largest values, samples added",
       "fp8 measurements merge stats-news stats-code --out merged", add_measurements_merge},
      {"unify", "Files of many ranks into files of fewer", "fp8 measurements unify stats --ranks 2 --out unified",
       add_measurements_unify},
      {"expand", "A unified file into one per rank", "fp8 measurements expand unified --ranks 8 --out expanded",
       add_measurements_expand},
      {"postprocess", "vLLM: attention's products take the ranges that the key and value caches measured",
       "fp8 measurements postprocess stats/inc_output --keep-orig", add_measurements_postprocess},
      {"diff", "Compare two calibrations, module by module",
       "fp8 measurements diff stats-old stats-new --tolerance 0.05", add_measurements_diff},
      {"show", "What measurement and scale files hold", "fp8 measurements show stats", add_measurements_show},
  };
}

}  // namespace fp8::commands
