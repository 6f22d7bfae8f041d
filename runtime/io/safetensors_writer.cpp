// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter of safetensors.h.
#include <algorithm>
#include <iterator>
#include <limits>

#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

std::uint64_t bytes_of(const SafetensorsWriter::Entry& entry, const std::filesystem::path& path) {
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(entry.dtype));
  bool empty = false, overflow = false;
  for (const std::int64_t size : entry.shape) {
    if (size < 0) fail(path, "tensor " + in_quotes(entry.name) + ": negative size " + std::to_string(size));
    if (size == 0)
      empty = true;
    else
      overflow = overflow || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  if (overflow || bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail(path, "tensor " + in_quotes(entry.name) + ": shape overflows 64 bits");
  return empty ? 0 : bytes;
}

std::string json_string(const std::string& text, const std::filesystem::path& path) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(path, "name or metadata " + in_quotes(text) + " is not UTF-8");
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

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<Entry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), mutex_(std::make_unique<std::mutex>()) {
  std::string header = "{";
  for (const auto& [key, text] : metadata)
    header +=
        (header.size() == 1 ? "\"__metadata__\":{" : ",") + json_string(key, path_) + ":" + json_string(text, path_);
  if (!metadata.empty()) header += "}";

  std::uint64_t end = 0;
  for (const Entry& entry : in_file_order(entries)) {
    if (entry.name == "__metadata__") fail(path_, "a tensor can't be named '__metadata__'");
    const std::uint64_t size = bytes_of(entry, path_);
    if (!slots_.emplace(entry.name, Slot{end, size, {}}).second)
      fail(path_, "two tensors are named " + in_quotes(entry.name));
    if (end + size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - kMaxHeaderBytes - 8)
      fail(path_, "the tensors together overflow 64 bits");
    std::string shape;
    for (const std::int64_t length : entry.shape) shape += (shape.empty() ? "" : ",") + std::to_string(length);
    header += (header.size() == 1 ? "" : ",") + json_string(entry.name, path_) + ":{\"dtype\":\"" +
              name_of(entry.dtype) + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(end) + "," +
              std::to_string(end + size) + "]}";
    end += size;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes)
    fail(path_,
         "header of " + std::to_string(header.size()) + " bytes, allowed at most " + std::to_string(kMaxHeaderBytes));

  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  data_start_ = 8 + header.size();
  file_ = std::make_unique<AtomicFile>(path_, data_start_ + end);
  file_->append(prefix);
  file_->append(header);
}

void SafetensorsWriter::write(const std::string& name, const void* data, std::uint64_t offset, std::uint64_t size) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) fail(path_, "has no tensor " + in_quotes(name) + " to write");
  Slot& slot = found->second;
  if (offset > slot.size || size > slot.size - offset)
    fail(path_, "tensor " + in_quotes(name) + " has " + std::to_string(slot.size) + " bytes, can't write " +
                    std::to_string(size) + " at " + std::to_string(offset));
  if (size == 0) return;
  file_->write_at(data_start_ + slot.begin + offset, data, size);

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
    if (written != slot.size)
      fail(path_, "tensor " + in_quotes(name) + ": " + std::to_string(written) + " of " + std::to_string(slot.size) +
                      " bytes written");
  }
  file_->commit();
}

}  // namespace fp8::io
