// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter of safetensors.h.
#include <algorithm>
#include <iterator>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/tensors/safetensors_layout.h"

namespace fp8::io {

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
  if (found == slots_.end()) fail(path_, "has no tensor " + in_quotes(name) + " to write");
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
    if (written != slot.size)
      fail(path_, "tensor " + in_quotes(name) + ": " + std::to_string(written) + " of " + std::to_string(slot.size) +
                      " bytes written");
  }
  file_->commit();
}

}  // namespace fp8::io
