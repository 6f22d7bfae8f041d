// SPDX-License-Identifier: Apache-2.0
// The ways to a finished checkpoint: one process writes it, or several write shares of it that are joined.
#include "fp8/quant/checkpoint/stream/stream.h"

#include "fp8/quant/checkpoint/stream/run.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using stream::File;

void check_rank(const StreamOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size)
    io::fail<io::Error>("rank {} of {}: allowed are 0 to world size - 1", options.rank, options.world_size);
}

/// True if `out` is what a run like this one finished. One of another kind is an io::Error that says so, unless it is
/// to be overwritten.
bool is_finished(const fs::path& out, const std::vector<Unit>& units, const std::vector<File>& files,
                 const StreamOptions& options) {
  std::error_code error;
  const fs::path sidecar = out / kSidecarName;
  if (!options.resume || !fs::exists(sidecar, error)) return false;
  if (options.overwrite && fs::exists(stream::beside(out, ".", ".partial"), error))
    return false;  // a run that was cut short replaces it
  const io::Json found = io::read_json(sidecar);
  if (!found.is_object() || found.value("run", io::Json()) != run_mark(units, options)) {
    if (options.overwrite) return false;
    io::fail(out,
             "is finished, and not what this run would write: it was made of other files or with other options, "
             "expected a new or empty folder (or {})",
             io::option("overwrite", "overwrite"));
  }
  for (const auto& file : files) {
    const fs::path path = out / file.name;
    std::uint64_t size = 0;
    const io::Descriptor in = io::open_regular(path, &size);
    stream::check_head(path, in.get(), size, stream::layout_of(file, units, path));
  }
  return true;
}

std::size_t units_in(const std::vector<File>& files) {
  std::size_t count = 0;
  for (const auto& file : files) count += file.units.size();
  return count;
}

bool share_is_finished(const fs::path& folder, const std::vector<Unit>& units, const std::vector<File>& files,
                       const StreamOptions& options) {
  std::error_code error;
  if (!options.resume || !fs::exists(folder / io::kShareFile, error)) return false;
  stream::check_share(folder, units, files, options.rank, options);
  return true;
}

void require_free(const fs::path& out, const StreamOptions& options) {
  std::error_code error;
  if (!options.overwrite && fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    io::fail(out, "exists and is not empty, expected a new or empty folder (or {})",
             io::option("overwrite", "overwrite"));
}

/// Writes share.json; the files of the share are on the disk.
void write_share_file(OutputFolder& folder, const stream::Run& run, const std::vector<Unit>& units,
                      const std::vector<File>& files, const StreamOptions& options) {
  std::vector<std::string> names;
  for (const auto& file : files)
    if (file.rank == options.rank) names.push_back(file.name);
  folder.path().sync();
  io::Json share = stream::share_json(units, files, options.rank, options);
  io::Json& sums = share[stream::kChecksums] = io::Json::object();
  auto& members = sums.get_ref<io::Json::object_t&>();  // sorted already: no look-up per name
  for (const auto& [unit, tensors] : run.finished()) members.emplace_back(unit, tensors);
  share[stream::kAsWritten] = stream::as_written(folder.path().temporary(), names);
  folder.write_json(io::kShareFile, share);
}

/// A damaged one is made again if its mark is taken away. Returns the checksums of all.
stream::Finished check_shares(const std::vector<fs::path>& places, const std::vector<Unit>& units,
                              const std::vector<File>& parts, const StreamOptions& options) {
  stream::Finished finished;
  for (std::size_t i = 0; i < places.size(); ++i) {
    try {
      finished.merge(stream::check_share(places[i], units, parts, static_cast<std::int64_t>(i), options));
    } catch (const io::Error& error) {
      const fs::path mark = places[i].parent_path() / (std::to_string(i) + ".done");
      io::fail<io::Error>("{} (remove {} for that)", io::raw_message(error), io::printable(mark.string(), 4096));
    }
  }
  return finished;
}

/// Makes `out` of shares that were checked.
void put_together(const fs::path& out, const std::vector<Unit>& units, const std::vector<File>& files,
                  const std::vector<File>& parts, const std::vector<fs::path>& shares, const stream::Finished& finished,
                  const StreamOptions& options, const std::function<void(OutputFolder&)>& finish) {
  OutputFolder folder(out, options.overwrite, options.source);
  stream::assemble(folder, units, files, parts, shares, options);
  stream::note_sums(folder, files, units, finished);
  stream::write_index(folder, files, units);
  finish(folder);
  stream::require_unchanged(options);
  folder.commit();
}

/// A run that can't even begin (a full disk) leaves nothing to go on with.
std::unique_ptr<stream::Run> open_run(OutputFolder& folder, const std::vector<Unit>& units,
                                      const std::vector<File>& files, const StreamOptions& options) {
  try {
    return std::make_unique<stream::Run>(folder, units, files, options);
  } catch (...) {
    std::error_code ignored;
    if (!folder.path().continued()) fs::remove_all(folder.path().temporary(), ignored);
    throw;
  }
}

/// Runs the units of options.rank into `target`, which appears when end() has added what stands beside them.
StreamResult run_into(const fs::path& target, const std::vector<Unit>& units, const std::vector<File>& files,
                      const StreamOptions& options, io::Partial partial,
                      const std::function<void(OutputFolder&, const stream::Run&)>& end) {
  StreamResult result;
  OutputFolder folder(target, options.overwrite, options.source, partial);
  if (folder.path().discarded())
    result.warnings.push_back(
        io::message("{}: what a run that was cut short had finished is removed; {} would have gone on with it",
                    folder.path().path().string(), io::spelled(io::option("resume"), options.spelling)));
  const auto run = open_run(folder, units, files, options);
  try {
    run->work();
    result.kept = run->kept();
    end(folder, *run);
    stream::require_unchanged(options);
    folder.path().sync();
  } catch (const std::exception& error) {
    if (!options.resume) throw;
    io::fail<io::Error>("{}; what was finished is kept in {}, {} goes on with it", io::raw_message(error),
                        io::printable(folder.path().temporary().string(), 4096), io::option("resume"));
  }
  run->remove_journal();
  folder.commit();
  return result;
}

StreamResult share_checkpoint(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options,
                              bool join, const std::function<void(OutputFolder&)>& finish) {
  io::ensure(options.shares.has_value(), "options of the shares");
  StreamOptions whole = options, part = options;
  whole.rank = part.rank = 0;
  whole.world_size = 1;
  whole.resume = true;  // what stands is left as it is
  part.world_size = options.shares->count;
  const auto files = stream::lay_out(units, whole), parts = stream::lay_out(units, part);
  const auto stands = [&] { return is_finished(out, units, files, whole); };
  const StreamResult finished = {units_in(files), true, {}, {}};
  const fs::path place = shares_folder(out);
  std::error_code error;
  if (stands()) {
    fs::remove_all(place, error);  // who joined them may have died before he did
    return finished;
  }
  require_free(out, options);
  const bool works = !join || options.shares->wait.has_value();
  if (!works && !fs::exists(place, error))
    io::fail(out, "no shares to join stand beside it ({})", place.filename().string());
  io::Shares shares(place, stream::whole_identity(units, part), *options.shares);
  if (stands()) {  // it was joined before our folder of shares was made, and another one removed
    shares.remove();
    return finished;
  }
  StreamResult result;
  if (works)
    shares.work([&](std::int64_t share, const fs::path& folder) {
      StreamOptions own = part;
      own.rank = share;
      own.overwrite = own.resume = false;  // in one go
      run_into(folder, units, parts, own, io::Partial::never,
               [&](OutputFolder& made, const stream::Run& run) { write_share_file(made, run, units, parts, own); });
    });
  result.shares.made = shares.made();
  if (join) {
    result.shares.joined = shares.join(stands, [&](const std::vector<fs::path>& places) {
      const auto sums = check_shares(places, units, parts, part);
      put_together(out, units, files, parts, places, sums, part, finish);
      shares.remove();
    });
    result.finished_before = !result.shares.joined && result.shares.made.empty();
  } else if (!shares.removed()) {
    result.shares.missing = shares.missing();
    return result;
  }
  if (!result.shares.joined) {  // somebody did, or the folder was moved away
    if (!stands())
      io::fail(place, "is gone, and its shares were not joined: {} does not stand", out.filename().string());
    shares.remove();
  }
  return result;
}

}  // namespace

Unit copy_unit(const io::Checkpoint& source, const std::string& from, const std::string& to) {
  const auto& info = source.info(from);
  Unit unit{to, {{to, info.dtype, info.shape}}, info.bytes(), {}, {}};
  run_in_parts(unit, static_cast<std::int64_t>(info.bytes()), static_cast<std::int64_t>(kPartBytes),
               [&source, from, to](UnitContext& context, std::int64_t first, std::int64_t last) {
                 context.copy(source, from, to, static_cast<std::uint64_t>(first),
                              static_cast<std::uint64_t>(last - first));
               });
  return unit;
}

bool stands(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options) {
  StreamOptions whole = options;
  whole.rank = 0;
  whole.world_size = 1;
  whole.resume = true;
  if (is_finished(out, units, stream::lay_out(units, whole), whole)) return true;
  require_free(out, options);
  return false;
}

StreamResult write_checkpoint(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options,
                              const std::function<void(OutputFolder&)>& finish) {
  check_rank(options);
  StreamResult result;
  const auto files = stream::lay_out(units, options);
  const bool shared = options.world_size > 1;
  const fs::path target = shared ? stream::share_folder(out, options.rank, options.world_size) : out;
  if (is_finished(out, units, files, options)) {
    result.kept = units_in(files);
    result.finished_before = true;
    return result;
  }
  if (shared) {
    require_free(out, options);
    if (share_is_finished(target, units, files, options)) {
      for (const auto& file : files) result.kept += file.rank == options.rank ? file.units.size() : 0;
      return result;
    }
  }
  return run_into(target, units, files, options, options.resume ? io::Partial::now : io::Partial::later,
                  [&](OutputFolder& folder, const stream::Run& run) {
                    if (shared) return write_share_file(folder, run, units, files, options);
                    stream::note_sums(folder, files, units, run.finished());
                    stream::write_index(folder, files, units);
                    finish(folder);
                  });
}

StreamResult join_checkpoint(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options,
                             const std::function<void(OutputFolder&)>& finish) {
  check_rank(options);
  const auto files = stream::lay_out(units, options);
  if (is_finished(out, units, files, options)) return {units_in(files), true, {}};
  std::vector<std::int64_t> missing;
  std::error_code error;
  for (std::int64_t rank = 0; rank < options.world_size; ++rank)
    if (!fs::exists(stream::share_folder(out, rank, options.world_size) / io::kShareFile, error))
      missing.push_back(rank);
  if (!missing.empty())
    io::fail(out, "can't join the shares of {} ranks, missing: {}", options.world_size, io::joined(missing));
  std::vector<fs::path> places;
  stream::Finished finished;
  for (std::int64_t rank = 0; rank < options.world_size; ++rank) {
    places.push_back(stream::share_folder(out, rank, options.world_size));
    finished.merge(stream::check_share(places.back(), units, files, rank, options));
  }
  put_together(out, units, files, files, places, finished, options, finish);
  for (const auto& place : places) fs::remove_all(place, error);
  return {};
}

StreamResult make_checkpoint(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options,
                             bool join, const std::function<void(OutputFolder&)>& finish) {
  if (options.shares.has_value()) return share_checkpoint(out, units, options, join, finish);
  return join ? join_checkpoint(out, units, options, finish) : write_checkpoint(out, units, options, finish);
}

}  // namespace fp8::quant
