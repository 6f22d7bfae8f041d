// SPDX-License-Identifier: Apache-2.0
// The two ways to a finished checkpoint: one process writes it, or several write shares of it that are joined.
#include "fp8/quant/checkpoint/stream/stream.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "fp8/configs/option_names.h"
#include "fp8/quant/checkpoint/stream/files.h"
#include "fp8/quant/checkpoint/stream/run.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file_names.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using stream::File;

constexpr std::uint64_t kPartBytes = std::uint64_t{32} << 20;
/// In share.json: {unit: {tensor: [[begin, end, "checksum"], ...]}}, of the bytes as they were given to be written.
constexpr char kChecksums[] = "checksums";

io::Partial partial_of(const StreamOptions& options) { return options.resume ? io::Partial::now : io::Partial::later; }

void check_rank(const StreamOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size)
    throw io::Error("rank " + std::to_string(options.rank) + " of " + std::to_string(options.world_size) +
                    ": allowed are 0 to world size - 1");
}

/// What several runs of one work have in common.
io::Json share_of(const std::vector<Unit>& units, const std::vector<File>& files, std::int64_t rank,
                  const StreamOptions& options) {
  io::Json names = io::Json::array();
  for (const auto& file : files) {
    if (file.rank == rank) names.push_back(file.name);
  }
  return {{"identity", stream::whole_identity(units, options)}, {"rank", rank}, {"files", names}};
}

/// Throws io::Error if a file is not as long as it should be, or has another header.
void check_head(const fs::path& path, int fd, std::uint64_t size, const io::SafetensorsLayout& layout) {
  if (size != layout.file_bytes)
    io::fail(path, std::to_string(size) + " bytes, expected " + std::to_string(layout.file_bytes));
  std::string head(layout.head.size(), '\0');
  io::read_at(fd, path, 0, head.data(), head.size());
  if (head != layout.head) io::fail(path, "has another header than this run would write");
}

/// The checksum of a run of bytes of a file.
std::uint64_t checksum_of(const fs::path& path, int fd, std::uint64_t begin, std::uint64_t size,
                          const StreamOptions& options) {
  constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min(kChunk, size)));
  io::Checksum sum;
  for (std::uint64_t done = 0; done < size; done += kChunk) {
    if (options.stop && options.stop()) throw io::Error("interrupted");
    const std::uint64_t n = std::min(kChunk, size - done);
    io::read_at(fd, path, begin + done, bytes.data(), static_cast<std::size_t>(n));
    sum.update(bytes.data(), static_cast<std::size_t>(n));
  }
  return sum.value();
}

/// Throws io::Error unless a tensor's bytes in a share are those that its rank wrote. pieces: [[begin, end, checksum],
/// ...], which cover it.
void check_pieces(const fs::path& path, int fd, const std::string& tensor, const io::SafetensorsLayout::Slot& slot,
                  const io::Json& pieces, const StreamOptions& options) {
  const auto fail = [&](const std::string& what) {
    io::fail(path, "tensor " + io::in_quotes(tensor) + ": " + what + "; write the share again");
  };
  std::uint64_t next = 0;
  if (!pieces.is_array()) fail("share.json has no checksums of it");
  for (const auto& piece : pieces) {
    const bool known = piece.is_array() && piece.size() == 3 && piece[0].is_number_unsigned() &&
                       piece[1].is_number_unsigned() && piece[2].is_string();
    const std::uint64_t begin = known ? piece[0].get<std::uint64_t>() : 0,
                        end = known ? piece[1].get<std::uint64_t>() : 0;
    if (!known || begin != next || end < begin || end > slot.size)
      fail("share.json has no checksum of all of its bytes");
    if (piece[2].get_ref<const std::string&>() !=
        io::checksum_text(checksum_of(path, fd, slot.begin + begin, end - begin, options)))
      fail("bytes " + std::to_string(begin) + " to " + std::to_string(end) +
           " are not those that were written, by their checksum");
    next = end;
  }
  if (next != slot.size) fail("share.json has no checksum of all of its bytes");
}

/// Throws io::Error if the share's files are not there in full, to the byte.
void check_share(const fs::path& folder, const std::vector<Unit>& units, const std::vector<File>& files,
                 std::int64_t rank, const StreamOptions& options) {
  io::Json found = io::read_json(folder / io::kShareFile);
  const io::Json finished = found.is_object() ? found.value(kChecksums, io::Json()) : io::Json();
  if (found.is_object()) found.erase(kChecksums);
  if (const std::string text = stream::difference(found, share_of(units, files, rank, options)); !text.empty())
    io::fail(folder, "was made from something else: " + text);
  std::unordered_map<std::string, const io::Json*> by_unit;
  if (finished.is_object()) {
    for (const auto& [unit, tensors] : finished.items()) by_unit.emplace(unit, &tensors);
  }
  if (!finished.is_object())
    io::fail(folder / io::kShareFile,
             "has no checksums, expected an object '" + std::string(kChecksums) + "'; write the share again");
  for (const auto& file : files) {
    if (file.rank != rank) continue;
    const fs::path path = folder / file.name;
    const auto layout = stream::layout_of(file, units, path);
    std::uint64_t size = 0;
    const io::Descriptor in = io::open_regular(path, &size);
    check_head(path, in.get(), size, layout);
    kernels::parallel_for(static_cast<std::int64_t>(file.units.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Unit& unit = units[file.units[static_cast<std::size_t>(i)]];
        const auto written = by_unit.find(unit.name);
        const io::Json tensors =
            written != by_unit.end() && written->second->is_object() ? *written->second : io::Json::object();
        for (const auto& e : unit.entries)
          check_pieces(path, in.get(), e.name, layout.slots.at(e.name), tensors.value(e.name, io::Json()), options);
      }
    });
  }
}

/// Whether `out` is what a run like this one finished. One of another kind is an io::Error that says so, unless it is
/// to be overwritten.
bool is_finished(const fs::path& out, const std::vector<Unit>& units, const std::vector<File>& files,
                 const StreamOptions& options) {
  std::error_code error;
  const fs::path sidecar = out / kSidecarName, plain = out.lexically_normal(),
                 place = plain.has_filename() ? plain : plain.parent_path();
  if (!options.resume || !fs::exists(sidecar, error)) return false;
  if (options.overwrite && fs::exists(place.parent_path() / ("." + place.filename().string() + ".partial"), error))
    return false;  // a run that was cut short replaces it
  const io::Json found = io::read_json(sidecar);
  if (!found.is_object() || found.value("run", io::Json()) != run_mark(units, options)) {
    if (options.overwrite) return false;
    io::fail(out,
             "is finished, and not what this run would write: it was made of other files or with other options, "
             "expected a new or empty folder (or overwrite)");
  }
  for (const auto& file : files) {
    const fs::path path = out / file.name;
    std::uint64_t size = 0;
    const io::Descriptor in = io::open_regular(path, &size);
    check_head(path, in.get(), size, stream::layout_of(file, units, path));
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
  check_share(folder, units, files, options.rank, options);
  return true;
}

void require_free(const fs::path& out, const StreamOptions& options) {
  std::error_code error;
  if (!options.overwrite && fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    io::fail(out, "exists and is not empty, expected a new or empty folder (or overwrite)");
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

void place_file(const fs::path& from, const fs::path& to, const fs::path& shown) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return;
  std::uint64_t size = 0;
  const io::Descriptor in = io::open_regular(from, &size);
  io::PlacedFile file(to, size, shown);
  if (file.copy(in.get(), 0, 0, size)) return;
  std::vector<std::uint8_t> buffer(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < size;) {
    const std::uint64_t chunk = std::min<std::uint64_t>(buffer.size(), size - at);
    io::read_at(in.get(), from, at, buffer.data(), chunk);
    file.write(at, buffer.data(), chunk);
    at += chunk;
  }
}

}  // namespace

Unit copy_unit(const io::Checkpoint& source, const std::string& from, const std::string& to) {
  const auto& info = source.info(from);
  Unit unit{to, {{to, info.dtype, info.shape}}, info.bytes(), {}, {}};
  if (info.bytes() <= 2 * kPartBytes) {
    unit.run = [&source, from, to](UnitContext& context) { context.copy(source, from, to); };
    return unit;
  }
  for (std::uint64_t at = 0; at < info.bytes(); at += kPartBytes) {
    const std::uint64_t size = std::min(kPartBytes, info.bytes() - at);
    unit.parts.push_back(
        [&source, from, to, at, size](UnitContext& context) { context.copy(source, from, to, at, size); });
  }
  return unit;
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
  OutputFolder folder(target, options.overwrite, partial_of(options));
  if (folder.path().discarded())
    result.warnings.push_back(folder.path().path().string() +
                              ": what a run that was cut short had finished is removed; " +
                              configs::option_name("'resume'", "--resume") + " would have gone on with it");
  const auto run = open_run(folder, units, files, options);
  try {
    run->work();
    result.kept = run->kept();
    if (shared) {
      io::Json share = share_of(units, files, options.rank, options);
      share[kChecksums] = run->finished();
      folder.write_json(io::kShareFile, share);
    } else {
      stream::write_index(folder, files, units);
      finish(folder);
    }
    stream::require_unchanged(options);
    folder.path().sync();
  } catch (const std::exception& error) {
    if (!options.resume) throw;
    throw io::Error(std::string(error.what()) + "; what was finished is kept in " +
                    io::printable(folder.path().temporary().string(), 4096) + ", " +
                    configs::option_name("'resume'", "--resume") + " goes on with it");
  }
  run->remove_journal();
  folder.commit();
  return result;
}

StreamResult join_checkpoint(const fs::path& out, const std::vector<Unit>& units, const StreamOptions& options,
                             const std::function<void(OutputFolder&)>& finish) {
  check_rank(options);
  const auto files = stream::lay_out(units, options);
  if (is_finished(out, units, files, options)) return {units_in(files), true, {}};
  std::vector<std::int64_t> missing;
  std::error_code error;
  for (std::int64_t rank = 0; rank < options.world_size; ++rank) {
    if (!fs::exists(stream::share_folder(out, rank, options.world_size) / io::kShareFile, error))
      missing.push_back(rank);
  }
  if (!missing.empty())
    io::fail(out, "can't join the shares of " + std::to_string(options.world_size) +
                      " ranks, missing: " + io::joined(missing));
  for (std::int64_t rank = 0; rank < options.world_size; ++rank)
    check_share(stream::share_folder(out, rank, options.world_size), units, files, rank, options);
  OutputFolder folder(out, options.overwrite);
  for (const auto& file : files) {
    place_file(stream::share_folder(out, file.rank, options.world_size) / file.name, folder.path().file(file.name),
               folder.path().path() / file.name);
  }
  stream::write_index(folder, files, units);
  finish(folder);
  stream::require_unchanged(options);
  folder.commit();
  for (std::int64_t rank = 0; rank < options.world_size; ++rank)
    fs::remove_all(stream::share_folder(out, rank, options.world_size), error);
  return {};
}

}  // namespace fp8::quant
