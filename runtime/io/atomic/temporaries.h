// SPDX-License-Identifier: Apache-2.0
// The table behind remove_temporaries(): which temporary files and folders are open now. Fixed size and no locks,
// because a signal handler reads it. A path that finds no free row, or is longer than one, is not listed; the next run
// removes it.
#pragma once
#include <filesystem>

namespace fp8::io {

enum class TemporaryKind {
  file,
  folder,
  lease,  ///< is not removed: it gets a time of change of 0, which gives it back (leases.h)
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

}  // namespace fp8::io
