// SPDX-License-Identifier: Apache-2.0
// fp8 measurements unify and expand: which files make up the ranks, and what is written from them.

#include "fp8/quant/scale_file/scale_file.h"
#include "fp8/tools/commands/measurements/measurements.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using measure::FileBytes;
using measure::StatsName;

constexpr std::int64_t kMostRanks = 65536;

/// Throws if the sets have different prefixes or observers: which one is meant?
void require_one_family(const std::vector<StatsName>& sets, const fs::path& path) {
  for (const auto& name : sets) {
    if (name.prefix == sets[0].prefix && name.observer == sets[0].observer) continue;
    io::fail<io::Error>("{}: found {} and {}, expected files of one prefix and observer; name the prefix",
                        path.string(), short_name(sets[0]), short_name(name));
  }
}

StatsName out_name(const StatsName& name, const fs::path& out, const configs::Rank& rank) {
  StatsName target = name.with_rank(rank);
  target.prefix = (out / fs::path(name.prefix).filename()).string();
  return target;
}

// --- unify

struct UnifyOptions {
  fs::path path, out;
  std::int64_t ranks = 1, world = 0;
  bool experts = false, no_scales = false, overwrite = false;
};

/// The number of ranks whose files are meant: --world-size, else the only one that --ranks divides.
int world_of(const std::vector<StatsName>& sets, const UnifyOptions& o) {
  std::set<int> all, fitting;
  for (const auto& name : sets) {
    if (!name.rank.has_value()) continue;
    all.insert(name.rank->world);
    if (name.rank->world > o.ranks && name.rank->world % o.ranks == 0) fitting.insert(name.rank->world);
  }
  std::vector<std::string> words;
  for (int world : all) words.push_back(std::to_string(world));
  if (all.empty())
    io::fail<io::Error>("{}: expected files of ranks ({}.json), found none", o.path.string(),
                        short_name(sets[0].with_rank(configs::Rank{0, 8})));
  if (o.world != 0) {
    if (all.count(static_cast<int>(o.world)) == 0)
      io::fail<io::Error>("{}: found files of {} ranks, none of --world-size {}", o.path.string(),
                          io::joined_first(words), o.world);
    if (o.world <= o.ranks || o.world % o.ranks != 0)
      io::fail<UsageError>("unify: --ranks: found {}, allowed: a divisor of {}, smaller than it", o.ranks, o.world);
    return static_cast<int>(o.world);
  }
  if (fitting.empty())
    io::fail<UsageError>("unify: --ranks: found {}, allowed: a divisor of the number of ranks ({}), smaller than it",
                         o.ranks, io::joined_first(words));
  if (fitting.size() > 1)
    io::fail<UsageError>("unify: {} has files of {} ranks; say which with --world-size", o.path.string(),
                         io::joined_first(words));
  return *fitting.begin();
}

/// All ranks of one set, in order. Throws naming those that are missing.
std::vector<StatsName> all_ranks(const StatsName& set, int world) {
  std::vector<StatsName> names;
  std::vector<std::string> missing;
  for (int i = 0; i < world; ++i) {
    names.push_back(set.with_rank(configs::Rank{i, world}));
    if (!names.back().exists()) missing.push_back(short_name(names.back()) + ".json");
  }
  if (!missing.empty())
    io::fail<io::Error>("{}: {} of {} ranks are missing: {}", fs::path(set.prefix).parent_path().string(),
                        missing.size(), world, io::joined_first(missing));
  return names;
}

void unify_set(const StatsName& set, int world, const UnifyOptions& o, std::vector<FileBytes>& files,
               std::vector<std::string>& warnings) {
  const auto names = all_ranks(set, world);
  const int ranks = static_cast<int>(o.ranks), size = world / ranks;
  for (int r = 0; r < ranks; ++r) {
    const auto target = out_name(set, o.out, {r, ranks});
    const std::int64_t local_rank = ranks == 1 ? -1 : r;
    std::vector<std::string> words;
    std::vector<measure::MeasurementFile> measured;
    std::vector<quant::ScaleFile> scales;
    for (int i = r * size; i < (r + 1) * size; ++i) {
      words.push_back(short_name(names[static_cast<std::size_t>(i)]));
      if (set.is_scales())
        scales.push_back(quant::read_scales(names[static_cast<std::size_t>(i)]));
      else
        measured.push_back(measure::read_measurements(names[static_cast<std::size_t>(i)]));
    }
    std::vector<FileBytes> bytes;
    if (set.is_scales()) {
      auto file = quant::unify(scales, words, o.experts, warnings);
      file.local_rank = local_rank;
      bytes = quant::scale_bytes(target, file);
    } else {
      auto file = measure::unify(measured, words, {o.experts, measure::ExpertValues::outputs}, warnings);
      file.local_rank = local_rank;
      const std::vector<StatsName> sources(names.begin() + r * size, names.begin() + (r + 1) * size);
      // With expert parallelism, each rank's states are of other experts under the same names.
      const auto states = o.experts ? std::vector<FileBytes>{} : merge_states(sources, target, file, warnings);
      bytes = measure::measurement_bytes(target, file);
      bytes.insert(bytes.end(), states.begin(), states.end());
    }
    files.insert(files.end(), bytes.begin(), bytes.end());
  }
}

/// The sets of ranks. A file stands for all files of its prefix and observer.
std::vector<StatsName> ranked_sets(const fs::path& path) {
  auto sets = sets_at(path);
  if (const auto file = fs::is_directory(path) ? std::nullopt : measure::parse_stats_name(path.string())) {
    sets = sets_at(file->prefix);
    std::erase_if(sets, [&](const StatsName& name) { return name.observer != file->observer; });
  }
  std::erase_if(sets, [](const StatsName& name) { return !name.rank.has_value(); });
  return sets;
}

void unify(const UnifyOptions& o, Context& context) {
  const auto sets = ranked_sets(o.path);
  if (sets.empty())
    io::fail<io::Error>("{}: expected files of ranks (*_hooks_maxabs_0_8.json), found none", o.path.string());
  require_one_family(sets, o.path);
  const int world = world_of(sets, o);
  std::vector<FileBytes> files;
  std::vector<std::string> warnings;
  std::set<std::string> done;
  for (const auto& name : sets)
    for (int r = 0; r < o.ranks && name.rank->world == world && !(o.no_scales && name.is_scales()); ++r)
      refuse_existing(out_name(name, o.out, {r, static_cast<int>(o.ranks)}), o.overwrite);
  for (const auto& name : sets) {
    if (name.rank->world != world || (o.no_scales && name.is_scales()) || !done.insert(name.method).second) continue;
    unify_set(name.with_rank(std::nullopt), world, o, files, warnings);
  }
  for (const auto& warning : warnings) context.warn(warning);
  Report report("unify", "");
  report.add("source_ranks", "ranks read", world);
  report.add("ranks", "ranks written", o.ranks);
  report.json.update({{"sets", done.size()}, {"warnings", warnings}});
  write_and_report(context, files, report);
}

// --- expand

struct ExpandOptions {
  fs::path path, out;
  std::int64_t world = 0;
  bool overwrite = false;
};

/// The unified sets: of rank 0 of 1, else without a rank.
std::vector<StatsName> unified_sets(const fs::path& path) {
  std::vector<StatsName> unified, plain;
  for (const auto& name : sets_at(path)) {
    if (name.rank.has_value() && name.rank->world == 1) unified.push_back(name);
    if (!name.rank.has_value()) plain.push_back(name);
  }
  if (unified.empty() && plain.empty())
    io::fail<io::Error>(
        "{}: expected a unified measurement (*_hooks_maxabs_0_1.json), found files of ranks only; unify them first",
        path.string());
  return unified.empty() ? plain : unified;
}

void expand(const ExpandOptions& o, Context& context) {
  const auto sets = unified_sets(o.path);
  require_one_family(sets, o.path);
  std::vector<FileBytes> files;
  for (const auto& name : sets)
    for (int r = 0; r < o.world; ++r)
      refuse_existing(out_name(name, o.out, {r, static_cast<int>(o.world)}), o.overwrite);
  for (const auto& name : sets) {
    const auto measured = name.is_scales() ? measure::MeasurementFile{} : measure::read_measurements(name);
    const auto scales = name.is_scales() ? quant::read_scales(name) : quant::ScaleFile{};
    for (int r = 0; r < o.world; ++r) {
      const configs::Rank rank{r, static_cast<int>(o.world)};
      const auto target = out_name(name, o.out, rank);
      const auto bytes =
          name.is_scales()
              ? quant::scale_bytes(target, quant::expand(scales, rank, short_name(name)))
              : measure::measurement_bytes(
                    target, measure::expand(measured, rank, {true, measure::ExpertValues::outputs}, short_name(name)));
      files.insert(files.end(), bytes.begin(), bytes.end());
    }
  }
  Report report("expand", "");
  report.add("ranks", "ranks written", o.world);
  report.json["sets"] = sets.size();
  write_and_report(context, files, report);
}

}  // namespace

Action add_measurements_unify(Options& options) {
  auto values = std::make_shared<UnifyOptions>();
  options.path("PATH", values->path, io::Reach::beside, "Folder, prefix or one of the files", Options::Need::required);
  options.integer("--ranks", values->ranks, 1, kMostRanks, "Ranks to write: a divisor of those read");
  options.path("--out", values->out, io::Reach::folder, "Folder to write to", Options::Need::required);
  options.integer("--world-size", values->world, 2, kMostRanks,
                  "Ranks to read, if there are files of several numbers of ranks", "found");
  options.flag("-u,--experts", values->experts, "Expert parallelism: every rank has experts of its own");
  options.flag("--no-scales", values->no_scales, "Measurements only");
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  return [values](Context& context) { unify(*values, context); };
}

Action add_measurements_expand(Options& options) {
  auto values = std::make_shared<ExpandOptions>();
  options.path("PATH", values->path, io::Reach::beside, "Folder, prefix or file of a unified measurement",
               Options::Need::required);
  options.integer("--ranks", values->world, 1, kMostRanks, "Ranks to write", "required");
  options.require("--ranks");
  options.renamed("--world-size", "--ranks");
  options.path("--out", values->out, io::Reach::folder, "Folder to write to", Options::Need::required);
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  return [values](Context& context) { expand(*values, context); };
}

}  // namespace fp8::commands
