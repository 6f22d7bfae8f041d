// SPDX-License-Identifier: Apache-2.0

#include "fp8/quant/checkpoint/stream/files.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/io/json/resumable_file.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant::stream {
namespace {

namespace fs = std::filesystem;

/// Throws io::Error unless a tensor's bytes in a share are those that its rank wrote.
/// as_written: they need not be read.
void check_pieces(const fs::path& path, int fd, const std::string& tensor, const io::SafetensorsLayout::Slot& slot,
                  const io::Json& pieces, bool as_written, const StreamOptions& options) {
  const auto fail = [&](const std::string& what) {
    io::fail(path, "tensor {}: {}; write the share again", io::in_quotes(tensor), what);
  };
  if (!pieces.is_string()) fail("share.json has no checksums of it");
  const auto noted = PieceSums::of(pieces, slot.size);
  if (!noted.has_value()) fail("share.json has no checksum of all of its bytes");
  for (std::size_t i = 0; !as_written && i < noted->size(); ++i) {
    if (options.stop && options.stop()) throw io::Error("interrupted");
    const std::uint64_t begin = i * kPieceBytes, size = std::min(kPieceBytes, slot.size - begin);
    if ((*noted)[i] != sum_of_piece(fd, path, slot.begin + begin, size))
      fail(io::message("bytes {} to {} are not those that were written, by their checksum", begin, begin + size));
  }
}

void copy_bytes(io::PlacedFile& to, std::uint64_t at, const fs::path& path, int from, std::uint64_t begin,
                std::uint64_t size, const StreamOptions& options) {
  if (size == 0 || to.copy(from, begin, at, size)) return;
  std::vector<std::uint8_t> buffer(static_cast<std::size_t>(std::min(io::kChunkBytes, size)));
  for (std::uint64_t done = 0; done < size;) {
    if (options.stop && options.stop()) throw io::Error("interrupted");
    const std::uint64_t chunk = std::min<std::uint64_t>(buffer.size(), size - done);
    io::read_at(from, path, begin + done, buffer.data(), chunk);
    to.write(at + done, buffer.data(), chunk);
    done += chunk;
  }
}

/// Copies a file, by a hard link where the file system has any.
void place_file(const fs::path& from, const fs::path& to, const fs::path& final_path, const StreamOptions& options) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return;
  std::uint64_t size = 0;
  const io::Descriptor in = io::open_regular(from, &size);
  io::PlacedFile file(to, size, final_path);
  copy_bytes(file, 0, from, in.get(), 0, size, options);
}

/// A file of a share, open.
struct Source {
  fs::path path;
  io::Descriptor file;
  io::SafetensorsLayout layout;
};

/// Makes `file` of tensors that stand in other files. part_of: by unit, the one that it stands in.
void copy_file(OutputFolder& folder, const std::vector<Unit>& units, const File& file,
               const std::vector<const File*>& part_of, const std::vector<fs::path>& shares,
               const StreamOptions& options) {
  const fs::path final_path = folder.path().path() / file.name;
  const auto layout = layout_of(file, units, final_path);
  io::PlacedFile to(folder.path().file(file.name), layout.file_bytes, final_path);
  to.write(0, layout.head.data(), layout.head.size());
  std::map<const File*, std::unique_ptr<Source>> sources;
  for (const std::size_t unit : file.units) {
    const File& part = *part_of[unit];
    auto& source = sources[&part];
    if (source) continue;
    fs::path path = shares[static_cast<std::size_t>(part.rank)] / part.name;
    io::Descriptor in = io::open_regular(path);
    auto its_layout = layout_of(part, units, path);
    source = std::make_unique<Source>(Source{std::move(path), std::move(in), std::move(its_layout)});
  }
  kernels::parallel_for(static_cast<std::int64_t>(file.units.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t unit = file.units[static_cast<std::size_t>(i)];
      const Source& source = *sources.at(part_of[unit]);
      for (const auto& e : units[unit].entries) {
        const auto& slot = source.layout.slots.at(e.name);
        copy_bytes(to, layout.slots.at(e.name).begin, source.path, source.file.get(), slot.begin, slot.size, options);
      }
    }
  });
}

}  // namespace

io::Json share_json(const std::vector<Unit>& units, const std::vector<File>& files, std::int64_t rank,
                    const StreamOptions& options) {
  io::Json names = io::Json::array();
  for (const auto& file : files)
    if (file.rank == rank) names.push_back(file.name);
  return {{"identity", whole_identity(units, options)}, {"rank", rank}, {"files", names}};
}

void check_head(const fs::path& path, int fd, std::uint64_t size, const io::SafetensorsLayout& layout) {
  if (size != layout.file_bytes) io::fail(path, "{} bytes, expected {}", size, layout.file_bytes);
  std::string head(layout.head.size(), '\0');
  io::read_at(fd, path, 0, head.data(), head.size());
  if (head != layout.head) io::fail(path, "has another header than this run would write");
}

Finished check_share(const fs::path& folder, const std::vector<Unit>& units, const std::vector<File>& files,
                     std::int64_t rank, const StreamOptions& options) {
  io::Json found = io::read_json(folder / io::kShareFile);
  const io::Json finished = found.is_object() ? found.value(kChecksums, io::Json()) : io::Json();
  const io::Json written = found.is_object() ? found.value(kAsWritten, io::Json()) : io::Json();
  if (found.is_object()) {
    found.erase(kChecksums);
    found.erase(kAsWritten);
  }
  if (const std::string text = io::difference(found, share_json(units, files, rank, options)); !text.empty())
    io::fail(folder, "was made from something else: {}", text);
  Finished by_unit;
  if (finished.is_object())
    for (const auto& [unit, tensors] : finished.items())
      by_unit[unit] = tensors.is_object() ? tensors : io::Json::object();
  if (!finished.is_object())
    io::fail(folder / io::kShareFile, "has no checksums, expected an object '{}'; write the share again", kChecksums);
  for (const auto& file : files) {
    if (file.rank != rank) continue;
    const fs::path path = folder / file.name;
    const auto layout = layout_of(file, units, path);
    std::uint64_t size = 0;
    const io::Descriptor in = io::open_regular(path, &size);
    check_head(path, in.get(), size, layout);
    const bool as_written = is_as_written(written, file.name, in.get());
    kernels::parallel_for(static_cast<std::int64_t>(file.units.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Unit& unit = units[file.units[static_cast<std::size_t>(i)]];
        const auto its = by_unit.find(unit.name);
        for (const auto& e : unit.entries)
          check_pieces(path, in.get(), e.name, layout.slots.at(e.name),
                       its != by_unit.end() ? its->second.value(e.name, io::Json()) : io::Json(), as_written, options);
      }
    });
  }
  return by_unit;
}

void assemble(OutputFolder& folder, const std::vector<Unit>& units, const std::vector<File>& files,
              const std::vector<File>& parts, const std::vector<fs::path>& shares, const StreamOptions& options) {
  std::vector<const File*> part_of(units.size());
  for (const auto& part : parts)
    for (const std::size_t unit : part.units) part_of[unit] = &part;
  for (const auto& file : files) {
    const File* const part = file.units.empty() ? nullptr : part_of[file.units.front()];
    if (part != nullptr && part->units == file.units) {
      const fs::path from = shares[static_cast<std::size_t>(part->rank)] / part->name;
      place_file(from, folder.path().file(file.name), folder.path().path() / file.name, options);
    } else {
      copy_file(folder, units, file, part_of, shares, options);
    }
  }
}

}  // namespace fp8::quant::stream
