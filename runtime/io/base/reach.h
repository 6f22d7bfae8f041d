// SPDX-License-Identifier: Apache-2.0
// What of the files a command reaches: what is named, and no other (tools/sandbox.h). No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

namespace fp8::io {

/// What a path that the user names is for.
enum class Reach : std::uint8_t {
  none,      ///< it is no path, or the program does not follow it
  read,      ///< a file, or a folder with all that is in it
  beside,    ///< read, with the files beside it: one file of a set, or what their names begin with, names the set
  change,    ///< as beside, and written where it is
  config,    ///< read: a QUANT_CONFIG, which names files itself
  code,      ///< a library, whose code reaches what it likes
  file,      ///< written, in its folder
  folder,    ///< written: a folder, with all that is in it
  replaced,  ///< written: a folder that appears whole (OutputDirectory)
};

/// The folder of a hub's cache that the links of this folder lead to, where it is a snapshot of one; "": it is none.
/// folder: canonical.
std::filesystem::path blobs_of(const std::filesystem::path& folder);

/// The one file without a name that this process has, in the folder of temporary files; the first call makes it. -1,
/// with errno: it can't be made.
int unnamed_file();

}  // namespace fp8::io
