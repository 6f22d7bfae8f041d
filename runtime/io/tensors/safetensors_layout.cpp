// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/safetensors_layout.h"

#include <algorithm>
#include <limits>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::io {
namespace {

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
      fail(path, "two tensors are named " + in_quotes(entry.name));
    if (end + size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - kMaxHeaderBytes - 8)
      fail(path, "the tensors together overflow 64 bits");
    header += (header.size() == 1 ? "" : ",") + json_string(entry.name, path) + ":{\"dtype\":\"" +
              name_of(entry.dtype) + "\",\"shape\":[" + joined(entry.shape, ",") + "],\"data_offsets\":[" +
              std::to_string(end) + "," + std::to_string(end + size) + "]}";
    end += size;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes)
    fail(path,
         "header of " + std::to_string(header.size()) + " bytes, allowed at most " + std::to_string(kMaxHeaderBytes));

  for (int i = 0; i < 8; ++i) head += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  head += header;
  for (auto& [name, slot] : slots) slot.begin += head.size();
  file_bytes = head.size() + end;
}

void check_within(const SafetensorsLayout::Slot& slot, const std::string& name, std::uint64_t offset,
                  std::uint64_t size, const std::filesystem::path& shown) {
  if (offset > slot.size || size > slot.size - offset)
    fail(shown, "tensor " + in_quotes(name) + " has " + std::to_string(slot.size) + " bytes, can't write " +
                    std::to_string(size) + " at " + std::to_string(offset));
}

}  // namespace fp8::io
