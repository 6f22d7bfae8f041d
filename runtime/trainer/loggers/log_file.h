// SPDX-License-Identifier: Apache-2.0
// A file that a logger adds to. Where a launcher started several processes only rank 0 has it open.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "fp8/runtime/io/base/file.h"

namespace fp8::trainer {

class LogFile {
 public:
  /// Throws io::Error for a file that can't be opened.
  explicit LogFile(std::filesystem::path path);

  int descriptor() const { return file_.get(); }
  bool writes() const { return file_.get() >= 0; }
  const std::filesystem::path& path() const { return path_; }
  /// All below do nothing where this process does not write, and throw io::Error for what can't be done.
  void append(std::string_view bytes);
  void sync();
  std::uint64_t size() const;
  /// Drops what is behind `size`: what a killed run added after its checkpoint. A shorter file is an error.
  void truncate(std::uint64_t size);
  /// Of a file that was written anew under the same name.
  void reopen();

 private:
  std::filesystem::path path_;
  io::Descriptor file_;
};

}  // namespace fp8::trainer
