// SPDX-License-Identifier: Apache-2.0
// How files stood on disk when they had been written: by that another process of the same machine tells that nobody
// touched them since, without reading a byte. share.json holds it:
//
//   "as_written": {"boot": "3f2a...", "at": ns, "files": {"model.safetensors": [size, device, inode, ns]}}
//
// The time is that of the inode's last change, which nobody can put back. It moves in ticks of some milliseconds, so a
// file is known by it only where it lies well before `at`, for which as_written() waits: a later write would show.
// After another boot, on another machine or file system nothing is known, and every byte is read. Internal to
// checkpoint_stream. No torch here.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::quant::stream {

inline constexpr char kAsWritten[] = "as_written";

/// Of `names` in `folder`, whose bytes are on the disk. Waits 25 ms after the last write at most. Throws io::Error for
/// one that is not there.
io::Json as_written(const std::filesystem::path& folder, const std::vector<std::string>& names);

/// Whether `record`, of as_written(), says that the open file `fd` is as it was. False for any other JSON.
bool is_as_written(const io::Json& record, const std::string& name, int fd);

}  // namespace fp8::quant::stream
