// SPDX-License-Identifier: Apache-2.0
// What an output needs at its place, made before the command reads what others wrote: from then on the process may have
// given up to write anywhere else (tools/sandbox.h), and the kernel grants rights only on what is there. No torch here.
//
//   in place   out/, with the folders that lead to it
//   replaced   .out.partial-<pid>/ and .out.lock, which the OutputDirectory of the same path takes over
#pragma once
#include <deque>
#include <system_error>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::io {

/// What can't be made is not, and the output itself will say why. The main thread's.
class OutputPlace {
 public:
  enum class Kind : std::uint8_t { in_place, replaced };
  OutputPlace(const std::filesystem::path& output, Kind kind);
  /// Removes what nobody has used.
  ~OutputPlace();
  OutputPlace(const OutputPlace&) = delete;
  OutputPlace& operator=(const OutputPlace&) = delete;

  /// To be written with all that is in them; to be read; where names change. Empty: none.
  const std::vector<std::filesystem::path>& written() const { return written_; }
  const std::filesystem::path& read() const { return read_; }
  const std::filesystem::path& named() const { return named_; }

  /// create_directories(), which also returns true for a folder that was made here for an output in place.
  static bool make_folders(const std::filesystem::path& folder, std::error_code& error);

  /// For the OutputDirectory of this final place: its lock, and whether an empty folder has become `temporary`.
  static Descriptor take_lock(const std::filesystem::path& output);
  static bool take_folder(const std::filesystem::path& output, const std::filesystem::path& temporary);
  /// A folder that take_folder() will take.
  static bool has_folder(const std::filesystem::path& folder);

 private:
  static OutputPlace* of(const std::filesystem::path& output);
  void make(const std::filesystem::path& folder);
  void make_replaced(const std::filesystem::path& output);

  std::vector<std::filesystem::path> written_, made_;  ///< made_: the innermost first
  std::filesystem::path read_, named_;
  std::filesystem::path output_, spare_;  ///< of an output that is replaced: its final place, the empty folder
  Descriptor lock_;
  std::optional<ListedTemporary> listed_lock_, listed_spare_;
  std::deque<ListedTemporary> listed_made_;
};

// Names beside an output; output_directory.cpp has them.

/// Absolute, without a '/' at the end.
std::filesystem::path without_slash(const std::filesystem::path& path);
/// What an absolute path leads to; its folder is there.
std::filesystem::path final_place(const std::filesystem::path& path);
/// "DIR/.out.lock" of "DIR/out" and ".lock".
std::filesystem::path beside(const std::filesystem::path& path, const std::string& ending);
/// The lock file of an output, locked. Throws io::Error where another process has it.
Descriptor locked(const std::filesystem::path& path, const std::filesystem::path& lock_path);

}  // namespace fp8::io
