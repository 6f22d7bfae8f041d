// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/stream/files.h"

#include <chrono>
#include <numeric>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace stream {
namespace {

namespace fs = std::filesystem;

/// Longer than two ticks of any kernel.
constexpr std::int64_t kTick = 25'000'000;

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return io::nanoseconds(time);
}

/// [size, device, inode, ctime]; null where the system does not say.
io::Json stands(int fd) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) return nullptr;
  return {static_cast<std::int64_t>(s.st_size), static_cast<std::uint64_t>(s.st_dev),
          static_cast<std::uint64_t>(s.st_ino), io::nanoseconds(s.st_ctim)};
}

std::uint64_t bytes_of_unit(const Unit& unit) {
  std::uint64_t bytes = 0;
  for (const auto& e : unit.entries) bytes += bytes_of(e);
  return bytes;
}

void share_out(std::vector<File>& files, std::int64_t world_size) {
  std::vector<std::size_t> by_size(files.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::ranges::stable_sort(by_size, [&](std::size_t a, std::size_t b) { return files[a].bytes > files[b].bytes; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size), 0);
  for (const std::size_t i : by_size) {
    const auto least = std::ranges::min_element(load);
    *least += files[i].bytes;
    files[i].rank = least - load.begin();
  }
}

}  // namespace

io::Json as_written(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  io::Json files = io::Json::object();
  std::int64_t newest = 0;
  for (const auto& name : names) {
    const io::Json& file = files[name] = stands(io::open_regular(folder / name).get());
    if (file.is_array()) newest = std::max(newest, file[3].get<std::int64_t>());
  }
  const std::int64_t since = now() - newest;
  if (since >= 0 && since <= kTick) std::this_thread::sleep_for(std::chrono::nanoseconds(kTick + 1 - since));
  return {{"boot", io::this_process().boot}, {"at", now()}, {"files", files}};
}

bool is_as_written(const io::Json& record, const std::string& name, int fd) {
  if (!record.is_object()) return false;
  const io::Json boot = record.value("boot", io::Json()), at = record.value("at", io::Json()),
                 files = record.value("files", io::Json());
  if (!boot.is_string() || boot == "" || boot != io::this_process().boot || !at.is_number_integer() ||
      !files.is_object())
    return false;
  const io::Json then = files.value(name, io::Json());
  if (!then.is_array() || then.size() != 4 || !then[3].is_number_integer() || then != stands(fd)) return false;
  const auto written = then[3].get<std::int64_t>(), seen = at.get<std::int64_t>();
  return seen > written && seen - written > kTick && now() >= seen;
}

std::vector<File> lay_out(const std::vector<Unit>& units, const StreamOptions& options) {
  io::ensure(options.world_size >= 1, "one process or more");
  std::uint64_t total = 0;
  for (const auto& unit : units) total += bytes_of_unit(unit);
  const auto world = static_cast<std::uint64_t>(options.world_size);
  const std::uint64_t limit =
      world == 1 ? options.shard_bytes : std::min(options.shard_bytes, (total + world - 1) / world);
  std::vector<File> files(1);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::uint64_t bytes = bytes_of_unit(units[i]);
    if (files.back().bytes > 0 && files.back().bytes + bytes > limit) files.emplace_back();
    files.back().bytes += bytes;
    files.back().units.push_back(i);
  }
  for (std::size_t i = 0; i < files.size(); ++i) files[i].name = io::shard_file(i, files.size());
  share_out(files, options.world_size);
  return files;
}

io::SafetensorsLayout layout_of(const File& file, const std::vector<Unit>& units, const fs::path& final_path) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const std::size_t unit : file.units)
    entries.insert(entries.end(), units[unit].entries.begin(), units[unit].entries.end());
  return io::SafetensorsLayout(entries, final_path);
}

void write_index(OutputFolder& folder, const std::vector<File>& files, const std::vector<Unit>& units) {
  if (files.size() == 1) return;
  std::map<std::string, std::string> where;
  std::uint64_t total = 0;
  for (const auto& file : files) {
    total += file.bytes;
    for (const std::size_t unit : file.units)
      for (const auto& e : units[unit].entries) where[e.name] = file.name;
  }
  io::Json map = io::Json::object();
  auto& members = map.get_ref<io::Json::object_t&>();  // sorted already: no look-up per name
  for (auto& [tensor, file] : where) members.emplace_back(tensor, file);
  folder.write_json(io::kIndexFile, io::Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}});
}

void note_sums(OutputFolder& folder, const std::vector<File>& files, const std::vector<Unit>& units,
               const Finished& finished) {
  for (const auto& file : files) {
    const auto layout = layout_of(file, units, file.name);
    std::map<std::uint64_t, std::string> in_file;  // by their place; what has no bytes has no sums
    for (const std::size_t unit : file.units) {
      const io::Json& pieces = finished.at(units[unit].name);
      for (const auto& e : units[unit].entries)
        if (const auto& slot = layout.slots.at(e.name); slot.size > 0) in_file[slot.begin] = pieces.at(e.name);
    }
    std::string tensors;
    for (const auto& [begin, sums] : in_file) tensors += (tensors.empty() ? "" : " ") + sums;
    folder.note_sums(file.name, {{"bytes", layout.file_bytes}, {"head", sums_of(layout.head)}, {"tensors", tensors}});
  }
}

fs::path beside(const fs::path& out, const std::string& prefix, const std::string& suffix) {
  const fs::path plain = out.lexically_normal(), place = plain.has_filename() ? plain : plain.parent_path();
  return place.parent_path() / (prefix + place.filename().string() + suffix);
}

fs::path share_folder(const fs::path& out, std::int64_t rank, std::int64_t world_size) {
  return beside(out, "", ".rank-" + std::to_string(rank) + "-of-" + std::to_string(world_size));
}

io::Json whole_identity(const std::vector<Unit>& units, const StreamOptions& options) {
  io::Checksum sum;
  const auto add = [&](const std::string& text) { sum.update(text.c_str(), text.size() + 1); };
  for (const auto& unit : units) {
    add(unit.name);
    for (const auto& e : unit.entries) {
      add(e.name);
      add(io::name_of(e.dtype));
      for (const auto size : e.shape) add(std::to_string(size));
    }
    add("");
  }
  io::Json identity = io::Json{{"version", FP8_VERSION}};
  for (const auto& [key, value] : options.identity.items()) identity[key] = value;
  identity["shard size"] = options.shard_bytes;
  identity["world size"] = options.world_size;
  identity["tensors"] = io::checksum_text(sum.value());
  return identity;
}

void require_unchanged(const StreamOptions& options) {
  if (options.source.empty() || !options.identity.is_object()) return;
  const std::string changed =
      io::difference(options.identity.value("source", io::Json::object()), identity_of(options.source));
  if (!changed.empty()) io::fail(options.source, "changed while it was read: {}", changed);
  require_carried_unchanged(options.source, options.carried);
}

}  // namespace stream

std::string run_mark(const std::vector<Unit>& units, const StreamOptions& options) {
  io::Json identity = stream::whole_identity(units, options);
  identity.erase("world size");
  return io::checksum_text(io::checksum(identity.dump()));
}

std::filesystem::path shares_folder(const std::filesystem::path& out) { return stream::beside(out, ".", ".shares"); }

std::vector<std::int64_t> shares_of(const std::filesystem::path& out) {
  const std::filesystem::path first = stream::share_folder(out, 0, 1);
  const std::string name = first.filename().string(),
                    prefix = name.substr(0, name.size() - std::string("0-of-1").size());
  std::set<std::int64_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(first.has_parent_path() ? first.parent_path() : ".", error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string text = entry->path().filename().string();
    long long rank = 0, size = 0;
    int length = 0;
    if (!text.starts_with(prefix)) continue;
    if (std::sscanf(text.c_str() + prefix.size(), "%9lld-of-%9lld%n", &rank, &size, &length) == 2 &&
        prefix.size() + static_cast<std::size_t>(length) == text.size())
      found.insert(size);
  }
  return {found.begin(), found.end()};
}

io::Json identity_of(const std::filesystem::path& model) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  std::error_code error;
  if (fs::is_directory(model, error)) {
    for (fs::directory_iterator entry(model, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string(), extension = entry->path().extension().string();
      const bool config = name == io::kConfigFile || name == io::kHfQuantConfigFile || name == kSidecarName ||
                          name.ends_with(".index.json");
      if (extension == ".safetensors" || extension == ".bin" || config) paths.push_back(entry->path());
    }
    if (error) io::fail_errno(model, "list", error.value());
  } else {
    paths.push_back(model);
  }
  std::ranges::sort(paths);
  io::Json files = io::Json::object();
  for (const auto& path : paths) {
    io::Json file = identity_of_file(path);
    if (!file.is_null())
      files[io::printable(path.filename().string(), 4096)] =
          std::move(file);  // a link to nothing: the code that needs it throws
  }
  return files;
}

}  // namespace fp8::quant
