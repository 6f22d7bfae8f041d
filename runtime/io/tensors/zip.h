// SPDX-License-Identifier: Apache-2.0
// The zip of an .npz: members stored or deflated; no encryption, no zip64, one volume. Internal to runtime/io; no torch
// here.
//
//   "PK\3\4" local header, name, extra | data        for each member
//   "PK\1\2" central header, name, extra, comment    for each member, with sizes, CRC-32 and the local header's offset
//   "PK\5\6" end: where the central headers start    (and a comment of at most 65535 bytes)
// Sizes are taken from the central header: numpy fills the local one's with 0xffffffff and a zip64 field.
#pragma once
#include <vector>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {

/// The bytes of `member`. Throws io::Error: no such member (the message lists what there is), sizes or offsets outside
/// the file, more than `limit` bytes, a wrong CRC-32.
std::string unzip_member(std::string_view zip, const std::string& member, std::uint64_t limit, const std::string& name);

/// A zip with one stored member, dated 1980-01-01. data: less than 4 GiB - 1 KiB.
std::string zip_of(const std::string& member, std::string_view data);

// The directory of a zip of any size, read from its end; zip64 too. Internal to runtime/io; no torch here.
//
//   .. "PK\1\2" central headers | [ "PK\6\6" zip64 end | "PK\6\7" where that stands ] | "PK\5\6" end, comment

struct ZipMember {
  std::string name;
  std::uint64_t header = 0, packed = 0, size = 0;  ///< of the local header; bytes in the file, bytes unpacked
  std::uint32_t flags = 0, method = 0, crc = 0;
};

class ZipFile {
 public:
  /// Reads a directory of at most 256 MiB. Throws io::Error for what is no zip or a damaged one.
  explicit ZipFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return file_.get(); }
  const std::vector<ZipMember>& members() const { return members_; }  ///< sorted by name, each name once
  const ZipMember* find(const std::string& name) const;               ///< nullptr: no such member
  /// Offset of a stored member's bytes, all of which lie within the file. Throws io::Error if it is compressed,
  /// encrypted or reaches past the end.
  std::uint64_t stored_at(const ZipMember& member) const;
  /// The bytes of a stored member of at most `limit` bytes, its CRC-32 checked.
  std::string read(const ZipMember& member, std::uint64_t limit) const;

 private:
  struct Directory {
    std::uint64_t count, size, at;
  };
  Directory find_directory() const;
  void read_members(const Directory& directory);

  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t file_size_ = 0;
  std::vector<ZipMember> members_;
};

}  // namespace fp8::io
