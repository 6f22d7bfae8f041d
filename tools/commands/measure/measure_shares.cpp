// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <system_error>

#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using measure::FileBytes;
using measure::StatsName;

constexpr double kNever = 1e12;  // seconds between snapshots: a share is begun anew

// The measurement that one process would have written, of those that several wrote, each of its samples: elementwise
// the largest values, samples added, what observers know merged by themselves (measurement_file.h). The parts stay.

struct JoinedParts {
  std::size_t parts = 0, modules = 0;
  std::int64_t samples = 0;
  std::vector<fs::path> out;  ///< written
  fs::path backup = {};       ///< of another measurement that was there
};

struct Part {
  StatsName name;
  std::string mark;  ///< that it must have
};

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
  io::fail<io::Error>("{}{}; measure it again", name.json().string(),
                      finished ? ": is of other files, samples or options than these"
                               : ": was cut short before all of its samples were measured");
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

/// Merges the observers' states of all samples into `file` and returns them as bytes; none if observers keep no state.
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

/// Moves files away that are not what is going to be written there. Returns where to; empty: nowhere.
fs::path back_up(const std::vector<FileBytes>& files, const StatsName& target) {
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
  if (others.empty() || all_the_same) return {};
  const fs::path prefix = target.prefix;
  const fs::path backup = measure::backup_path(prefix.parent_path(), prefix.filename().string());
  fs::create_directory(backup, error);
  for (const auto& path : others) {
    fs::rename(path, backup / path.filename(), error);
    if (error) io::fail(path, "can't be moved to a backup: {}", error.message());
  }
  return backup;
}

/// parts: in the order of their samples; mark: of what comes of them. Files of another measurement under the target's
/// name go into a backup. Throws io::Error for a part without its mark: it was cut short, or is of other data or
/// options.
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
  if (files.empty()) io::fail<io::Error>("{}: no part has any samples", target.base());
  auto merged = measure::merge(files, names);
  if (merged.mode == measure::MeasurementMode::shape) {
    merged.modules = files.back().modules;  // of the last call, which is the last part's
    merged.kv_cache = files.back().kv_cache;
  }
  sort_modules(merged);
  const auto states = join_states(measured, target, merged);
  auto bytes = measure::measurement_bytes(target, merged);
  for (auto& [path, text] : bytes)
    if (path == target.fingerprint()) text = with_mark(path, text, mark);
  if (states.has_value()) bytes.push_back(*states);
  const fs::path backup = back_up(bytes, target);
  // The mark comes last: with it, all the rest is there.
  const auto rest = std::stable_partition(bytes.begin(), bytes.end(),
                                          [&](const FileBytes& file) { return file.first != target.fingerprint(); });
  const KeepsWork keeps;  // files that belong together
  auto out = measure::write_together({bytes.begin(), rest});
  for (const auto& path : measure::write_together({rest, bytes.end()})) out.push_back(path);
  return {parts.size(), merged.modules.size(), merged.num_samples.value_or(0), std::move(out), backup};
}

/// The measurement that joining makes: of no rank.
StatsName joined_name(const measure::CalibrationOptions& c) { return {c.prefix, c.observer, {}, std::nullopt}; }

fs::path shares_folder_of(const StatsName& joined) {
  const fs::path base = joined.base();
  return base.parent_path() / ("." + base.filename().string() + ".shares");
}

SharePlaces places_of(const StatsName& joined) {
  std::set<std::int64_t> worlds;
  std::error_code error;
  const fs::path base = joined.base();
  if (fs::is_directory(base.parent_path(), error)) {
    for (const auto& name : measure::list_stats(base.parent_path()))
      if (name.same_set(joined) && name.rank.has_value()) worlds.insert(name.rank->world);
  }
  return {{worlds.begin(), worlds.end()}, base.filename().string() + "_R_N", shares_folder_of(joined)};
}

void refuse_observer(const std::string& observer) {
  const auto type = measure::find_observer(observer);
  if (type.keeps_state || type.kept == measure::Kept::amax || type.kept == measure::Kept::sizes) return;
  io::fail<io::Error>("observer {}: what it keeps of several processes can't be joined, allowed: {}",
                      io::in_quotes(observer), io::joined(measure::observer_names([](const measure::ObserverType& t) {
                        return t.keeps_state || t.kept == measure::Kept::amax || t.kept == measure::Kept::sizes;
                      })));
}

/// One share: its own session, its own files.
void measure_share(const MeasureRun& all, SampleRange samples, const fs::path& place,
                   const std::function<void(MeasureRun&, SampleRange)>& body) {
  fs::create_directories(place);
  Snapshots snapshots(place / "work", kNever);
  MeasureRun run{all.options, all.context, all.calibration, all.memory, all.process, snapshots, all.sources};
  run.share = all.share;
  run.calibration.prefix = (place / fs::path(all.calibration.prefix).filename()).string();
  run.first_sample = samples.first;
  run.profiler = all.profiler;
  const DiscardOnError guard{run.session};
  if (samples.count == 0) {
    write_empty(run);
    return;
  }
  body(run, samples);
  warn_non_finite(*run.session, run.context, run.first_sample);
  run.session->finalize();
  mark_finished(stats_name(run), all.mark);
}

std::vector<Part> parts_in(const MeasureRun& run, const std::vector<fs::path>& places) {
  std::vector<Part> parts;
  const StatsName joined = joined_name(run.calibration);
  for (const auto& place : places) {
    parts.push_back({joined, run.mark});
    parts.back().name.prefix = (place / fs::path(joined.prefix).filename()).string();
  }
  return parts;
}

/// Of every rank. Throws io::Error naming those that are missing.
std::vector<Part> parts_of_ranks(const MeasureRun& run) {
  std::vector<Part> parts;
  std::vector<std::string> missing;
  const auto world = static_cast<int>(run.share.world_size);
  for (int rank = 0; rank < world; ++rank) {
    const StatsName name = joined_name(run.calibration).with_rank(configs::Rank{rank, world});
    parts.push_back({name, mark_of(run, {rank, world})});
    if (!name.exists()) missing.push_back(std::to_string(rank));
  }
  if (!missing.empty())
    io::fail<io::Error>("{}: can't join the measurements of {} ranks, missing: {}", run.options.out.string(), world,
                        io::joined_first(missing));
  return parts;
}

void report_joined(const MeasureRun& run, const JoinedParts& joined, io::Json shares) {
  Report report("measure (join)", run.options.model);
  report.order({"modules", "samples"});
  report.add("parts", "parts", joined.parts);
  report.add("modules", "modules", joined.modules);
  report.add("samples", "samples", joined.samples);
  report.json.update({{"finished_before", false}, {"joined", true}, {"out", io::Json::array()}});
  for (const auto& path : joined.out) report.add_entry("out", path.string(), {"out", path.string()});
  if (!shares.is_null()) report.json["shares"] = std::move(shares);
  note_backup(joined.backup, run.context);
  report.print(run.context);
}

/// Reports the shares that this process made, where it did not join them.
void report_shares(const MeasureRun& run, const std::vector<std::int64_t>& made,
                   const std::vector<std::int64_t>& missing) {
  const auto& options = *run.share.shares;
  Report report("measure", run.options.model);
  report.json = {{"finished_before", false}, {"joined", false}, {"forward_seconds", run.forward_seconds}};
  report.add("shares", "shares", shares_json(options, made, missing, false),
             shares_text(options, made, missing, false));
  report.print(run.context);
}

/// Returns the joined measurement if it is complete; none while another process still writes it.
std::optional<measure::MeasurementFile> joined_before(const MeasureRun& run) {
  try {
    return finished_before(run);
  } catch (const io::Error&) {
    return std::nullopt;
  }
}

/// Reports a joined measurement and removes its shares, which the process that joined them may have left behind.
void leave_finished(const MeasureRun& run, const measure::MeasurementFile& file) {
  std::error_code ignored;
  fs::remove_all(shares_folder(run), ignored);
  report_finished(run, file);
}

void join_and_report(const MeasureRun& run, io::Shares& shares, const std::function<bool()>& stands) {
  std::optional<JoinedParts> joined;
  shares.join(stands, [&](const auto& places) {
    joined = join_parts(parts_in(run, places), joined_name(run.calibration), run.mark);
    shares.remove();
  });
  if (!joined.has_value()) {
    shares.remove();  // the process that joined them may have died before
    return report_shares(run, shares.made(), {});
  }
  report_joined(run, *joined, shares_json(*run.share.shares, shares.made(), {}, true));
}

}  // namespace

std::optional<Share> share_of_measuring(const MeasureOptions& o, const measure::CalibrationOptions& calibration,
                                        bool separate_files, const Context& context) {
  const bool given = o.share.rank >= 0 || o.share.world_size > 0 || o.share.shares > 0 || o.share.join;
  if (!given && !separate_files) {
    if (!measures_as_rank(separate_files, context)) return std::nullopt;
    return Share();
  }
  Share share = find_share(o.share, [&] { return places_of(joined_name(calibration)); }, io::environment_value);
  if (share.shares.has_value() || o.share.join) refuse_observer(calibration.observer);
  attach(share, context);
  return share;
}

fs::path shares_folder(const MeasureRun& run) { return shares_folder_of(joined_name(run.calibration)); }

void for_samples(MeasureRun& run, const Forwards& forwards, const std::function<void(MeasureRun&, SampleRange)>& body) {
  const std::int64_t missing = warn_of_lacking(run, forwards.samples());
  // What is lacking is the last part's, so that the parts together say what one process would.
  const auto planned = [&](SampleRange samples) {
    return samples.count + (samples.first + samples.count == forwards.samples() ? missing : 0);
  };
  if (run.shares == nullptr) {
    const SampleRange samples = forwards.share(run.share.rank, run.share.world_size);
    run.first_sample = samples.first;
    run.planned = planned(samples);
    if (samples.count > 0) body(run, samples);
    return;
  }
  const std::int64_t count = run.share.shares->count;
  if (count > forwards.count())
    run.context.warn(
        fmt::format("{} shares of {} forwards: some have no samples; a smaller --batch makes more forwards", count,
                    forwards.count()));
  run.shares->work([&](std::int64_t share, const fs::path& place) {
    measure_share(run, forwards.share(share, count), place, [&](MeasureRun& one, SampleRange samples) {
      one.planned = planned(samples);
      body(one, samples);
      run.forward_seconds += one.forward_seconds;
    });
  });
}

std::vector<fs::path> write_empty(const MeasureRun& run) {
  measure::MeasurementFile none;
  none.num_samples = 0;
  none.observer = run.calibration.observer;
  return measure::write_measurements(stats_name(run), none);
}

void join_measurements(MeasureRun& run) {
  run.calibration.rank.reset();
  const StatsName target = joined_name(run.calibration);
  if (!run.share.shares.has_value())
    return report_joined(run, join_parts(parts_of_ranks(run), target, mark_of(run, {})), nullptr);
  const auto stands = [&] { return joined_before(run).has_value(); };
  if (const auto file = joined_before(run)) return leave_finished(run, *file);
  std::error_code error;
  if (!fs::exists(shares_folder(run), error))
    io::fail<io::Error>("{}: no shares to join stand there ({})", run.options.out.string(),
                        shares_folder(run).filename().string());
  io::Shares shares(shares_folder(run), run.work, *run.share.shares);
  join_and_report(run, shares, stands);
}

void measure_in_shares(MeasureRun& run, const std::function<void(MeasureRun&)>& measure) {
  const auto stands = [&] { return joined_before(run).has_value(); };
  if (const auto file = joined_before(run)) return leave_finished(run, *file);
  io::Shares shares(shares_folder(run), run.work, *run.share.shares);
  if (const auto file = joined_before(run))  // before our folder of shares was made, and after another's
    return leave_finished(run, *file);
  run.shares = &shares;
  measure(run);
  run.shares = nullptr;
  if (run.options.share.join) return join_and_report(run, shares, stands);
  report_shares(run, shares.made(), shares.missing());
}

void report_finished(const MeasureRun& run, const measure::MeasurementFile& file) {
  const auto name = stats_name(run);
  io::Json files = io::Json::array();
  std::error_code error;
  for (const auto& path : {name.json(), name.npz(), name.mod_list(), name.fingerprint(), name.kv_cache()})
    if (fs::exists(path, error)) files.push_back(path.string());
  run.context.result(
      {{"modules", file.modules.size()},
       {"samples", file.num_samples.value_or(0)},
       {"finished_before", true},
       {"resumed", false},
       {"out", files}},
      fmt::format("finished already: {}.* is what a run with these options wrote; nothing was done\n", name.base()));
}

}  // namespace fp8::commands
