// SPDX-License-Identifier: Apache-2.0
// SafetensorsFile of safetensors.h.
#include "fp8/runtime/io/tensors/safetensors.h"

#include <cstring>

#include "fp8/runtime/io/base/byte_reader.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::io {
namespace {

constexpr std::size_t kMaxRank = 64;

// One tensor's entry of the header; `fail` adds file and tensor to what is wrong.
template <class Fail>
TensorInfo read_entry(const std::string& name, const Json& entry, const Fail& fail) {
  TensorInfo info;
  info.name = name;
  if (!entry.is_object()) fail(message("is a {}, expected an object", entry.type_name()));
  const auto member = [&](const char* key) -> const Json& {
    const auto found = entry.find(key);
    if (found == entry.end()) fail(message("lacks the key '{}'", key));
    return *found;
  };

  const Json& dtype = member("dtype");
  if (!dtype.is_string()) fail("dtype is not a string");
  try {
    info.dtype = dtype_from_name(dtype.get_ref<const std::string&>());
  } catch (const Error& error) {
    fail(error.what());
  }

  const Json& shape = member("shape");
  if (!shape.is_array()) fail("shape is not an array");
  if (shape.size() > kMaxRank) fail(message("has {} dimensions, allowed at most 64", shape.size()));
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  std::int64_t nonzero_product = 1;  // strides need it even where another dimension is 0
  bool empty = false;
  for (const Json& size : shape) {
    // Non-negative integers are what the parser calls unsigned.
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax))
      fail("shape holds " + printable(size.dump()) + ", expected integers from 0 to 2^63 - 1");
    info.shape.push_back(size.get<std::int64_t>());
    empty = empty || info.shape.back() == 0;
    if (info.shape.back() != 0 && __builtin_mul_overflow(nonzero_product, info.shape.back(), &nonzero_product))
      fail("shape " + printable(shape.dump()) + " overflows 64 bits");
  }

  const Json& offsets = member("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    fail("data_offsets is " + printable(offsets.dump()) + ", expected [begin, end]");
  info.begin = offsets[0].get<std::uint64_t>();
  info.end = offsets[1].get<std::uint64_t>();
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(empty ? 0 : nonzero_product),
                             static_cast<std::uint64_t>(size_of(info.dtype)), &bytes))
    fail("shape " + printable(shape.dump()) + " overflows 64 bits");
  if (info.end < info.begin || info.end - info.begin != bytes)
    fail(message("data_offsets {} don't hold the {} bytes of {} {}", printable(offsets.dump()), bytes,
                 name_of(info.dtype), printable(shape.dump())));
  return info;
}

// `tensors`, sorted by begin, must cover [0, size) without hole, overlap or rest.
void check_cover(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors, std::uint64_t size) {
  std::uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string where =
        message("tensor {} starts at byte {} of the data, expected {}", in_quotes(tensor.name), tensor.begin, next);
    if (tensor.begin > next) fail(path, "{} (a hole before it)", where);
    if (tensor.begin < next) fail(path, "{} (it overlaps the one before)", where);
    next = tensor.end;
    if (next > size)
      fail(path, "tensor {} ends at byte {}, but the file holds {} bytes of data (cut short?)", in_quotes(tensor.name),
           next, size);
  }
  if (next < size) fail(path, "{} bytes after the last tensor, expected none", size - next);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : TensorFile(std::move(path)) {
  std::uint64_t file_size = 0;
  file_ = open_regular(path_, &file_size);
  read_all(file_size);
}

SafetensorsFile::SafetensorsFile(std::filesystem::path name, std::string bytes)
    : TensorFile(std::move(name)), bytes_(std::move(bytes)) {
  read_all(bytes_->size());
}

void SafetensorsFile::read_all(std::uint64_t file_size) {
  if (file_size < 8) fail(path_, "{} bytes, too short for a safetensors file", file_size);
  std::string prefix(8, '\0');
  read_raw(0, prefix.data(), prefix.size());
  const auto header_size = ByteReader(prefix).little<std::uint64_t>(0);
  if (header_size > kMaxHeaderBytes)
    fail(path_, "header of {} bytes, allowed at most {} (not a safetensors file?)", header_size, kMaxHeaderBytes);
  if (header_size > file_size - 8)
    fail(path_, "header of {} bytes in a file of {} (cut short?)", header_size, file_size);
  std::string text(header_size, '\0');
  read_raw(8, text.data(), text.size());
  data_start_ = 8 + header_size;
  read_header(text);
  check_cover(path_, tensors_, file_size - data_start_);
}

// Entry by entry: a header of 10^6 tensors as one tree of JSON values would take a gigabyte.
void SafetensorsFile::read_header(const std::string& text) {
  if (text.empty() || text[0] != '{') fail(path_, "header is not a JSON object (not a safetensors file?)");
  const std::string name = path_.string() + " (header)";
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find("\"data_offsets\"", at)) != std::string::npos; ++at) ++count;
  tensors_.reserve(count);
  int metadata_seen = 0;
  parse_json_members(text, name, "", [&](std::string&& key, Json&& entry) {
    if (key != "__metadata__") {
      const auto bad = [&](const std::string& what) { fail(path_, "tensor {}: {}", in_quotes(key), what); };
      tensors_.push_back(read_entry(key, entry, bad));
      return;
    }
    if (++metadata_seen > 1) parse_json(text, name);  // tells where the key stands again
    if (!entry.is_object()) fail(path_, "__metadata__ is not an object");
    for (const auto& [member, value] : entry.get_ref<const Json::object_t&>()) {
      if (!value.is_string()) fail(path_, "__metadata__ key {} is not a string", in_quotes(member));
      metadata_.emplace(member, value.get_ref<const std::string&>());
    }
  });
  // By end too: an empty tensor stands before the one that starts where it does.
  const auto before = [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  if (!std::is_sorted(tensors_.begin(), tensors_.end(), before))
    std::stable_sort(tensors_.begin(), tensors_.end(), before);
  if (!index_names()) parse_json(text, name);  // tells where the name stands again
}

std::optional<Place> SafetensorsFile::place(const TensorInfo& tensor) const {
  if (bytes_.has_value()) return std::nullopt;
  return Place{file_.get(), data_start_ + tensor.begin};
}

void SafetensorsFile::read_bytes(const TensorInfo& tensor, void* destination, std::uint64_t offset,
                                 std::uint64_t size) const {
  read_raw(data_start_ + tensor.begin + offset, destination, size);
}

// Within the file, as read_all() and TensorFile::read() have checked.
void SafetensorsFile::read_raw(std::uint64_t offset, void* destination, std::uint64_t size) const {
  if (!bytes_.has_value()) return read_at(file_.get(), path_, offset, destination, size);
  ByteReader(*bytes_).copy(offset, size, destination);
}

namespace {

std::uint64_t bytes_of(const SafetensorsWriter::Entry& entry, const std::filesystem::path& path) {
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(entry.dtype));
  bool empty = false, overflow = false;
  for (const std::int64_t size : entry.shape) {
    if (size < 0) fail(path, "tensor {}: negative size {}", in_quotes(entry.name), size);
    if (size == 0)
      empty = true;
    else
      overflow = overflow || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  if (overflow || bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail(path, "tensor {}: shape overflows 64 bits", in_quotes(entry.name));
  return empty ? 0 : bytes;
}

std::string json_string(const std::string& text, const std::filesystem::path& path) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(path, "name or metadata {} is not UTF-8", in_quotes(text));
  }
}

// Alignment is the item's size: with the wide ones first every tensor starts at a multiple of its own.
std::vector<SafetensorsWriter::Entry> in_file_order(std::vector<SafetensorsWriter::Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return size_of(a.dtype) != size_of(b.dtype) ? size_of(a.dtype) > size_of(b.dtype) : a.name < b.name;
  });
  return entries;
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(const std::vector<SafetensorsWriter::Entry>& entries,
                                     const std::filesystem::path& path,
                                     const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  for (const auto& [key, text] : metadata)
    header +=
        (header.size() == 1 ? "\"__metadata__\":{" : ",") + json_string(key, path) + ":" + json_string(text, path);
  if (!metadata.empty()) header += "}";

  std::uint64_t end = 0;
  for (const auto& entry : in_file_order(entries)) {
    if (entry.name == "__metadata__") fail(path, "a tensor can't be named '__metadata__'");
    const std::uint64_t size = bytes_of(entry, path);
    if (!slots.emplace(entry.name, Slot{end, size}).second)
      fail(path, "two tensors are named {}", in_quotes(entry.name));
    if (end + size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - kMaxHeaderBytes - 8)
      fail(path, "the tensors together overflow 64 bits");
    header += message("{}{}:{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}", header.size() == 1 ? "" : ",",
                      json_string(entry.name, path), name_of(entry.dtype), joined(entry.shape, ","), end, end + size);
    end += size;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes)
    fail(path, "header of {} bytes, allowed at most {}", header.size(), kMaxHeaderBytes);

  for (int i = 0; i < 8; ++i) head += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  head += header;
  for (auto& [name, slot] : slots) slot.begin += head.size();
  file_bytes = head.size() + end;
}

void check_within(const SafetensorsLayout::Slot& slot, const std::string& name, std::uint64_t offset,
                  std::uint64_t size, const std::filesystem::path& label) {
  if (offset > slot.size || size > slot.size - offset)
    fail(label, "tensor {} has {} bytes, can't write {} at {}", in_quotes(name), slot.size, size, offset);
}

// SafetensorsWriter of safetensors.h.

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<Entry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), mutex_(std::make_unique<std::mutex>()) {
  const SafetensorsLayout layout(entries, path_, metadata);
  for (const auto& [name, slot] : layout.slots) slots_.emplace(name, Slot{slot.begin, slot.size, {}});
  file_ = std::make_unique<AtomicFile>(path_, layout.file_bytes);
  file_->append(layout.head);
}

void SafetensorsWriter::write(const std::string& name, const void* data, std::uint64_t offset, std::uint64_t size) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) fail(path_, "has no tensor {} to write", in_quotes(name));
  Slot& slot = found->second;
  check_within({slot.begin, slot.size}, name, offset, size, path_);
  if (size == 0) return;
  file_->write_at(slot.begin + offset, data, size);

  const std::lock_guard lock(*mutex_);
  std::uint64_t begin = offset, end = offset + size;
  auto next = slot.written.upper_bound(begin);
  if (next != slot.written.begin() && std::prev(next)->second >= begin) --next;
  while (next != slot.written.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = slot.written.erase(next);
  }
  slot.written.emplace(begin, end);
}

void SafetensorsWriter::write(const std::string& name, const void* data) {
  const auto found = slots_.find(name);
  write(name, data, 0, found == slots_.end() ? 0 : found->second.size);
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    std::uint64_t written = 0;
    for (const auto& [begin, end] : slot.written) written += end - begin;
    if (written != slot.size) fail(path_, "tensor {}: {} of {} bytes written", in_quotes(name), written, slot.size);
  }
  file_->commit();
}

}  // namespace fp8::io
