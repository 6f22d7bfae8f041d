// SPDX-License-Identifier: Apache-2.0
// A file of known size that is filled in any order, by any thread, perhaps by several runs one after the other. Unlike
// an AtomicFile it stands under its own name from the start: make it in a folder that gets its final name when all is
// done. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {

/// Writes all of it; throws io::Error, with `needed` bytes in the message of a full disk.
void write_at(int fd, const std::filesystem::path& path, std::uint64_t offset, const void* data, std::uint64_t size,
              std::uint64_t needed = 0);

class PlacedFile {
 public:
  /// Makes the file, or takes the one that stands there with its bytes, and gives it `size`. The space is reserved, so
  /// that a full disk shows here. shown: the path in messages.
  PlacedFile(std::filesystem::path path, std::uint64_t size, std::filesystem::path shown);

  std::uint64_t size() const { return size_; }
  /// These are thread-safe. Throw io::Error naming `shown`.
  void write(std::uint64_t offset, const void* data, std::uint64_t size);
  void read(std::uint64_t offset, void* data, std::uint64_t size) const;
  /// Copies bytes of another file within the kernel; false, with nothing said of what was copied, where that can't be
  /// done.
  bool copy(int from, std::uint64_t from_offset, std::uint64_t offset, std::uint64_t size);

 private:
  std::filesystem::path shown_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace fp8::io
