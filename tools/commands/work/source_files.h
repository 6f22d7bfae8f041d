// SPDX-License-Identifier: Apache-2.0
// The files that a run reads, as they were when it began: a file that is replaced, cut short or written to underneath
// is told apart. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

class SourceFiles {
 public:
  SourceFiles() = default;
  /// The files that make up a model (a folder's configuration, tokenizer and *.safetensors files, or the one file) and
  /// `more`. What does not exist is left out: who reads it will say so.
  SourceFiles(const std::filesystem::path& model, const std::vector<std::filesystem::path>& more);

  /// Throws io::Error naming the first file that is not as it was.
  void check_unchanged() const;
  /// {path: [bytes, modified ns]}: the same for another process that reads the same files.
  io::Json to_json() const;
  /// {name: [bytes, checksum of the first and the last 64 KiB]}: the same for a copy of them on another machine. Throws
  /// io::Error for a file that can't be read.
  io::Json ends() const;

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0, device = 0, inode = 0;
    std::int64_t modified = 0;  ///< ns
    bool exists = false;
    bool operator==(const File&) const = default;
  };
  static File look_at(const std::filesystem::path& path);
  std::vector<File> files_;
};

}  // namespace fp8::commands
