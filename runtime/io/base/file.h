// SPDX-License-Identifier: Apache-2.0
// Regular files, read whole or at an offset, with errors that name the path. No torch here.
//
// A model's folder may come from anywhere. A link in it may name any file of the user (notes.txt -> ~/.ssh/id_rsa),
// which then would become part of what is written, so that few links are followed.
//
//   DIR/name -> a file below DIR                                                followed
//   models--X/snapshots/Y/name -> a file below models--X/blobs (a hub's cache)  followed
//   to anything else, and a folder that is a link                               not followed
//
// DIR itself may be a link: its name stands for what it leads to.
#pragma once
#include <sys/stat.h>

#include <cstdio>
#include <ctime>
#include <optional>
#include <utility>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::io {

/// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// The piece in which something large is read and written: a multiple of every element's size.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

/// Opens a regular file for reading; size: its bytes at that moment. Anything else (folder, pipe, device) is an
/// io::Error, found without waiting for a pipe's writer.
Descriptor open_regular(const std::filesystem::path& path, std::uint64_t* size = nullptr);

/// Reads exactly `size` bytes at `offset`; throws if the file ends before.
void read_at(int fd, const std::filesystem::path& path, std::uint64_t offset, void* destination, std::uint64_t size);

/// Writes all of it; throws io::Error, with `needed` bytes in the message of a full disk.
void write_at(int fd, const std::filesystem::path& path, std::uint64_t offset, const void* data, std::uint64_t size,
              std::uint64_t needed = 0);

/// Reserves `size` bytes for an open file, by fallocate() in `mode`, or where the file system has no such call makes
/// sure that the disk has them. Throws io::Error.
void reserve_space(int fd, const std::filesystem::path& path, std::uint64_t size, int mode);

/// True if a folder has something of this name: a link to nothing too, which opening it will name. What can't be looked
/// at is not there.
bool is_there(const std::filesystem::path& path);

/// The bytes of a regular file of at most `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit);

/// The target of the first link on the way from `folder` to folder/name that is not followed; nothing if there is none.
/// A link to nothing, or to itself, is none: opening it says what is wrong.
std::optional<std::filesystem::path> link_out_of(const std::filesystem::path& folder,
                                                 const std::filesystem::path& name);

/// folder/name, to be opened. Throws io::Error naming it and where it leads if a link on the way is not followed.
std::filesystem::path source_file(const std::filesystem::path& folder, const std::filesystem::path& name);

// Names of files that more than one folder writes, reads or looks for. No torch here.

// In the folder of a checkpoint, as transformers has them.
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kWeightsFile[] = "model.safetensors", kIndexFile[] = "model.safetensors.index.json";
inline constexpr char kTorchWeightsFile[] = "pytorch_model.bin", kTorchIndexFile[] = "pytorch_model.bin.index.json";
inline constexpr char kHfQuantConfigFile[] = "hf_quant_config.json";  // ModelOpt's, beside config.json

/// Of shard i (from 0) of n: "model-00001-of-00003.safetensors"; of the only one kWeightsFile.
inline std::string shard_file(std::size_t i, std::size_t n) {
  if (n == 1) return kWeightsFile;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, n);
  return name;
}

/// In the folder of a rank's share of a checkpoint.
inline constexpr char kShareFile[] = "share.json";

/// The parts of the names of measurements and scales, and the end, before ".json", of their lists of modules
/// (measure/files/stats_files.h).
inline constexpr char kHooks[] = "_hooks_", kModuleList[] = "_mod_list";

// The times that stat() and clock_gettime() tell, as one number. No torch here.

/// Nanoseconds since the epoch of its clock.
inline std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// When a file was last written.
inline std::int64_t modified(const struct stat& status) { return nanoseconds(status.st_mtim); }

// fsync of a folder: a rename or a new name is safe only after it. No torch here.

/// Throws io::Error naming the folder.
void sync_folder(const std::filesystem::path& folder);

}  // namespace fp8::io
