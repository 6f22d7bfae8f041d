// SPDX-License-Identifier: Apache-2.0
// Outputs appear whole or not at all: a temporary sibling, fsync, rename, fsync of the folder. No torch here.
//
//   out.json  is written as  .out.json.partial-<pid>-<n>, locked (flock) while it is open
//   out/      is filled as   .out.partial-<pid>/, under the lock file .out.lock
//             what it replaces waits as  .out.old-<pid>/
//
// The next writer of the same output removes what a killed one left, and puts .out.old-<pid> back if out is missing.
// An output that may be continued is filled as .out.partial/ (Partial).
#pragma once
#include <sys/types.h>

#include "fp8/runtime/io/base/file.h"

// The table behind remove_temporaries(): which temporary files and folders are open now. Fixed size and no locks,
// because a signal handler reads it. A path that finds no free row, or is longer than one, is not listed; the next run
// removes it.

namespace fp8::io {

enum class TemporaryKind {
  file,
  folder,
  empty_folder,  ///< stays where something is in it
  lease,         ///< is not removed: it gets a time of change of 0, which gives it back (leases.h)
};

/// Lists a path until the object goes. The path must be absolute, as the working folder may change.
class ListedTemporary {
 public:
  ListedTemporary(const std::filesystem::path& path, TemporaryKind kind) noexcept;
  ~ListedTemporary();
  ListedTemporary(const ListedTemporary&) = delete;
  ListedTemporary& operator=(const ListedTemporary&) = delete;

 private:
  int row_ = -1;
};

/// A file being written under a temporary name beside `path`; removed unless commit() was called. Every function throws
/// io::Error; a full disk reads "PATH: no space left on device (needed N bytes)".
class AtomicFile {
 public:
  /// The folder of `path` must exist; `path` must be new or a regular file, which commit() replaces
  /// (where it is a link, the file that it leads to).
  /// reserve: final size if known; allocated at once so that a full disk is found before the work (0: unknown).
  explicit AtomicFile(std::filesystem::path path, std::uint64_t reserve = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(const void* data, std::size_t size);
  void append(std::string_view text) { append(text.data(), text.size()); }
  void write_at(std::uint64_t offset, const void* data, std::size_t size);  ///< thread-safe
  void commit();
  int fd() const { return file_.get(); }

 private:
  std::uint64_t needed(std::uint64_t end) const { return end > reserve_ ? end : reserve_; }

  std::filesystem::path path_, temporary_;
  Descriptor file_;
  std::optional<ListedTemporary> listed_;
  std::uint64_t position_ = 0, reserve_ = 0;
};

/// Removes the temporary files and folders that are open now, and gives leases back; async-signal-safe, for a SIGINT
/// handler that exits after it.
void remove_temporaries() noexcept;

/// How a run continues where another was cut short.
///   never   the folder is this run's own; it goes with it, and so does what killed runs left
///   later   as never, but if this run is killed another can go on with what it leaves
///   now     continues with what an earlier run left, and leaves what it has itself when it fails
enum class Partial : std::uint8_t { never, later, now };

/// The modes of an output: the users who may read its source may read it too.
///
///   folder   what the source folder allows
///   file     what the file of the same name in the source allows; of other names what every file of the source does
///   both     less what the umask takes away; the owner keeps reading and writing
class OutputModes {
 public:
  /// source: a folder, or a file, whose folder then is not asked; "": nothing is taken over. Reads no file.
  explicit OutputModes(std::filesystem::path source);
  mode_t folder() const { return folder_; }
  /// name: below the output.
  mode_t file(const std::filesystem::path& name) const;

 private:
  std::filesystem::path source_;
  mode_t umask_, folder_, others_;
};

/// chmod(), where the folder or file has another mode: it would look changed to who remembers its times. Throws
/// io::Error.
void set_mode(const std::filesystem::path& path, mode_t mode);

/// A folder being filled under a temporary name beside `path`; renamed to it by commit(). Holds a lock (flock on
/// "<parent>/.<name>.lock") so that two runs on one output meet an error, not each other.
class OutputDirectory {
 public:
  /// Throws io::Error if `path` exists and is not an empty folder, unless overwrite (then it is replaced at commit; a
  /// folder that holds none of our or a checkpoint's files is still refused), if the parent can't be written, or if
  /// another run holds it. Missing parent folders are made. No other user may look into it until commit(), then those
  /// who may look into `source` (OutputModes), what it is made of; "": who the umask lets.
  OutputDirectory(std::filesystem::path path, bool overwrite, Partial partial = Partial::never,
                  const std::filesystem::path& source = {});
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  /// Returns the path at which to write a file named `name` ("config.json", "chat_templates/a.jinja") until commit();
  /// makes its subfolder.
  std::filesystem::path file(const std::string& name) const;
  const std::filesystem::path& temporary() const { return temporary_; }
  const std::filesystem::path& path() const { return path_; }  ///< final place: absolute, links resolved
  /// True if the folder holds what an earlier run left.
  bool continued() const { return continued_; }
  /// True if an earlier run had left something to go on with, and it was removed.
  bool discarded() const { return discarded_; }
  /// fsync of everything now, and the modes of its files, so that commit() need not do it.
  void sync();
  /// sync(), then the rename. Once; an error leaves what was at `path` as it was.
  void commit();

 private:
  void take_lock();
  void clear_leftovers();
  void make_temporary();
  void put_in_place();

  std::filesystem::path path_, temporary_, lock_path_;
  Descriptor lock_;
  std::optional<ListedTemporary> listed_, listed_lock_;
  Partial partial_;
  OutputModes modes_;
  bool overwrite_ = false, committed_ = false, synced_ = false, continued_ = false, discarded_ = false;
};

/// Throws io::Error if writing `output` would touch `input`: the same place (links resolved), or one inside the other.
void refuse_same_path(const std::filesystem::path& input, const std::filesystem::path& output);

}  // namespace fp8::io
