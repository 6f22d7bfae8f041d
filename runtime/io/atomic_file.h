// SPDX-License-Identifier: Apache-2.0
// Outputs appear whole or not at all: a temporary sibling, fsync, rename, fsync of the folder. No torch here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fp8::io {

/// A file being written under a temporary name beside `path`; removed unless commit() was called.
class AtomicFile {
 public:
  /// reserve: final size if known; allocated at once so that a full disk is found before the work (0: unknown).
  explicit AtomicFile(std::filesystem::path path, std::uint64_t reserve = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(const void* data, std::size_t size);
  void append(std::string_view text) { append(text.data(), text.size()); }
  void write_at(std::uint64_t offset, const void* data, std::size_t size);  ///< thread-safe
  void commit();
  int fd() const { return fd_; }

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  std::uint64_t position_ = 0;
};

/// Removes the temporary files and folders that are open now; async-signal-safe enough for a SIGINT handler that exits after it.
void remove_temporaries() noexcept;

/// A folder being filled under a temporary name beside `path`; renamed to it by commit(). Holds a lock (flock on
/// "<parent>/.<name>.lock") so that two runs on one output meet an error, not each other.
class OutputDirectory {
 public:
  /// Throws io::Error if `path` exists and is not an empty folder, unless overwrite (then it is replaced at commit; a folder
  /// that holds none of our or a checkpoint's files is still refused), if the parent can't be written, or if another run holds it.
  OutputDirectory(std::filesystem::path path, bool overwrite);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  /// Where to write a file named `name` until commit().
  std::filesystem::path file(const std::string& name) const;
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_, lock_path_;
  int lock_ = -1;
  bool overwrite_ = false;
};

}  // namespace fp8::io
