// SPDX-License-Identifier: Apache-2.0
// Regular files, read whole or at an offset, with errors that name the path. No torch here.
//
// A folder that came from somebody else, a model's, and which links in it are followed. A link may name any file of the
// user (notes.txt -> ~/.ssh/id_rsa), which then would become part of what is written.
//
//   DIR/name -> a file below DIR                                                followed
//   models--X/snapshots/Y/name -> a file below models--X/blobs (a hub's cache)  followed
//   to anything else, and a folder that is a link                               not followed
//
// DIR itself may be a link: who names it means what it leads to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/error.h"

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

/// What is read and written at once of something large: a multiple of every element's size.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

/// Throws io::Error "PATH: <what>".
[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what);

/// Throws io::Error for the failed system call `doing` ("open", "rename") with errno's text `code`. A full disk or
/// quota is "PATH: no space left on device (needed N bytes)"; a file size limit names itself likewise. needed: 0 if
/// unknown.
[[noreturn]] void fail_errno(const std::filesystem::path& path, const std::string& doing, int code,
                             std::uint64_t needed = 0);

/// Opens a regular file for reading; size: its bytes at that moment. Anything else (folder, pipe, device) is an
/// io::Error, found without waiting for a pipe's writer.
Descriptor open_regular(const std::filesystem::path& path, std::uint64_t* size = nullptr);

/// Reads exactly `size` bytes at `offset`; throws if the file ends before.
void read_at(int fd, const std::filesystem::path& path, std::uint64_t offset, void* destination, std::uint64_t size);

/// Whether a folder has something of this name: a link to nothing too, which whoever opens it will name. What can't be
/// looked at is not there.
bool is_there(const std::filesystem::path& path);

/// The bytes of a regular file of at most `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit);

/// Where the first link on the way from `folder` to folder/name leads that is not followed; nothing if there is none. A
/// link to nothing, or to itself, is none: who opens it says what is wrong.
std::optional<std::filesystem::path> link_out_of(const std::filesystem::path& folder,
                                                 const std::filesystem::path& name);

/// folder/name, to be opened. Throws io::Error naming it and where it leads if a link on the way is not followed.
std::filesystem::path source_file(const std::filesystem::path& folder, const std::filesystem::path& name);

}  // namespace fp8::io
