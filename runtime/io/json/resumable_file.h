// SPDX-License-Identifier: Apache-2.0
// A list of what is done, on disk, that survives the end of the process at any moment. One line per entry, each with
// the checksum of its own text:
//
//   {"xxh64":"0123456789abcdef","entry":{"unit":"lm_head","tensors":{...}}}
//
// A line that was cut short or is damaged counts as not written. No torch here.
#pragma once
#include <mutex>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

class Journal {
 public:
  /// Opens `path`, or makes it, and reads the whole lines that stand there. What follows the last whole line is cut
  /// off. Throws io::Error naming the path.
  explicit Journal(std::filesystem::path path);

  /// Of the lines found, in their order.
  const std::vector<Json>& entries() const { return entries_; }
  /// Lines found that were damaged.
  std::size_t damaged() const { return damaged_; }
  /// Forgets what was found, on disk too.
  void clear();
  /// Adds a line: in the file when it returns, so that the end of the process can't lose it. Thread-safe.
  void append(const Json& entry);

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::mutex mutex_;
  std::uint64_t end_ = 0;
  std::size_t damaged_ = 0;
  std::vector<Json> entries_;
};

// A file of known size that is filled in any order, by any thread, perhaps by several runs one after the other. Unlike
// an AtomicFile it stands under its own name from the start: make it in a folder that gets its final name when all is
// done. No torch here.

class PlacedFile {
 public:
  /// Makes the file, or takes the one that stands there with its bytes, and gives it `size`. The space is reserved, so
  /// that a full disk shows here. label: the path in messages.
  PlacedFile(std::filesystem::path path, std::uint64_t size, std::filesystem::path label);

  std::uint64_t size() const { return size_; }
  /// These are thread-safe. Throw io::Error naming `label`.
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
