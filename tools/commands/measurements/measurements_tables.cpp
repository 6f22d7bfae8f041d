// SPDX-License-Identifier: Apache-2.0
// fp8 measurements diff and show.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "fp8/measure/ranks/ranks.h"
#include "fp8/quant/scale_file/scale_file.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/tools/commands/measurements/measurements.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using measure::StatsName;

// --- diff

struct DiffOptions {
  fs::path before, after, html;
  double tolerance = 0;
  std::int64_t top = 20;
};

/// The set that `path` means: a scale file by its own name, else a measurement.
StatsName one_set(const fs::path& path) {
  if (!fs::is_directory(path)) {
    if (auto name = measure::parse_stats_name(path.string())) return *name;
  }
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
    throw io::Error(short_name(b) + ": found " + (b.is_scales() ? "scales" : "a measurement") + ", " + short_name(a) +
                    " is the other kind");
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
  if (!d.same(o.tolerance)) {
    throw io::Error(fmt::format("the calibrations differ: {} tensors by more than {:g} %, {} missing, {} added", beyond,
                                o.tolerance * 100, d.missing.size(), d.added.size()));
  }
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

}  // namespace

Action add_measurements_diff(Options& options) {
  auto values = std::make_shared<DiffOptions>();
  options.path("BEFORE", values->before, "Measurement or scale files: a folder, prefix or file",
               Options::Need::required);
  options.path("AFTER", values->after, "The same, to compare with", Options::Need::required);
  options.number("--tolerance", values->tolerance, 0, 1e6, "Exit code 1 if a value changes by more: 0.05 is 5 %");
  options.integer("--top", values->top, 1, 1'000'000'000, "Rows to print");
  options.path("--html", values->html, "Write a page with a heat map of the changes and a table of all there");
  return [values](Context& context) { diff(*values, context); };
}

Action add_measurements_show(Options& options) {
  auto path = std::make_shared<fs::path>();
  options.path("PATH", *path, "Folder (all its sets in one table), prefix or file (its values)",
               Options::Need::required);
  return [path](Context& context) { show(*path, context); };
}

}  // namespace fp8::commands
