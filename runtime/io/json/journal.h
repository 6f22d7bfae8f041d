// SPDX-License-Identifier: Apache-2.0
// A list of what is done, on disk, that survives the end of the process at any moment. One line per entry, each with
// the checksum of its own text:
//
//   {"xxh64":"0123456789abcdef","entry":{"unit":"lm_head","tensors":{...}}}
//
// A line that was cut short or is damaged counts as not written. No torch here.
#pragma once
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <vector>

#include "fp8/runtime/io/base/file.h"
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

}  // namespace fp8::io
