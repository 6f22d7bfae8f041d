// SPDX-License-Identifier: Apache-2.0
// Files that belong together: all of them appear, or none, and then what they would have replaced stands as before.
#pragma once
#include <list>

#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::io {

class FileSet {
 public:
  FileSet() = default;
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  /// A file of another path than those before: its bytes are on the disk then, under a temporary name. The folder
  /// must exist. Throws io::Error.
  void add(std::filesystem::path path, std::string_view bytes);
  /// Puts all in place; once. Throws io::Error, and then none is. (Only a process that is killed, or told to stop
  /// twice, between two of them can part them.)
  void commit();

 private:
  struct File {
    std::filesystem::path path, temporary;
    std::optional<ListedTemporary> listed = {};
    Descriptor data = {};  ///< holds the lock
  };
  std::list<File> files_;
};

}  // namespace fp8::io
