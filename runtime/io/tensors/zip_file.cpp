// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/zip.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{256} << 20;

// Little-endian field of a header.
std::uint64_t field(std::string_view bytes, std::size_t at, int size) {
  ensure(at + static_cast<std::size_t>(size) <= bytes.size(), "a header that lies within the bytes read");
  std::uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i)
    value = value << 8 | static_cast<std::uint8_t>(bytes[at + static_cast<std::size_t>(i)]);
  return value;
}
std::uint32_t u16(std::string_view bytes, std::size_t at) { return static_cast<std::uint32_t>(field(bytes, at, 2)); }
std::uint32_t u32(std::string_view bytes, std::size_t at) { return static_cast<std::uint32_t>(field(bytes, at, 4)); }
std::uint64_t u64(std::string_view bytes, std::size_t at) { return field(bytes, at, 8); }

// Sizes and offset that did not fit 32 bits: extra field 1 has those that are 0xffffffff, in this order.
bool widen(ZipMember& member, std::string_view extra) {
  std::uint64_t* const wide[] = {&member.size, &member.packed, &member.header};
  const auto is_open = [](const std::uint64_t* value) { return *value == 0xffffffff; };
  if (std::none_of(std::begin(wide), std::end(wide), is_open)) return true;
  while (extra.size() >= 4) {
    const std::uint32_t id = u16(extra, 0), size = u16(extra, 2);
    if (size > extra.size() - 4) return false;
    std::string_view data = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* value : wide) {
      if (!is_open(value)) continue;
      if (data.size() < 8) return false;
      *value = u64(data, 0);
      data.remove_prefix(8);
    }
    return true;
  }
  return false;
}

}  // namespace

ZipFile::ZipFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = open_regular(path_, &file_size_);
  read_members(find_directory());
}

ZipFile::Directory ZipFile::find_directory() const {
  if (file_size_ < kEndBytes) fail(path_, "{} bytes, too short for a zip file", file_size_);
  const std::uint64_t tail_size = std::min<std::uint64_t>(file_size_, kEndBytes + 65535 + kLocatorBytes);
  std::string tail(tail_size, '\0');
  read_at(file_.get(), path_, file_size_ - tail_size, tail.data(), tail_size);
  for (std::uint64_t at = tail_size - kEndBytes + 1; at-- > 0;) {
    if (u32(tail, at) != 0x06054b50 || at + kEndBytes + u16(tail, at + 20) != tail_size) continue;
    Directory found{u16(tail, at + 10), u32(tail, at + 12), u32(tail, at + 16)};
    if (u16(tail, at + 4) != 0 && u16(tail, at + 4) != 0xffff) fail(path_, "is a zip of several volumes, expected one");
    const bool wide = found.count == 0xffff || found.size == 0xffffffff || found.at == 0xffffffff;
    if (wide && at >= kLocatorBytes && u32(tail, at - kLocatorBytes) == 0x07064b50) {
      const std::uint64_t end64 = u64(tail, at - kLocatorBytes + 8);
      std::string record(kEnd64Bytes, '\0');
      if (file_size_ < kEnd64Bytes || end64 > file_size_ - kEnd64Bytes) fail(path_, "its zip directory is damaged");
      read_at(file_.get(), path_, end64, record.data(), record.size());
      if (u32(record, 0) != 0x06064b50) fail(path_, "its zip directory is damaged");
      found = {u64(record, 32), u64(record, 40), u64(record, 48)};
    }
    if (found.size > file_size_ || found.at > file_size_ - found.size) fail(path_, "its zip directory is damaged");
    if (found.size > kMaxDirectoryBytes)
      fail(path_, "a zip directory of {} bytes, allowed at most {}", found.size, kMaxDirectoryBytes);
    return found;
  }
  fail(path_, "is not a zip file, or is cut short");
}

void ZipFile::read_members(const Directory& directory) {
  std::string bytes(directory.size, '\0');
  read_at(file_.get(), path_, directory.at, bytes.data(), bytes.size());
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    if (bytes.size() - at < kCentralBytes || u32(bytes, at) != 0x02014b50) fail(path_, "its zip directory is damaged");
    const std::uint64_t name_size = u16(bytes, at + 28), extra_size = u16(bytes, at + 30),
                        all = kCentralBytes + name_size + extra_size + u16(bytes, at + 32);
    if (all > bytes.size() - at) fail(path_, "its zip directory is damaged");
    const std::string_view entry = std::string_view(bytes).substr(at, all);
    ZipMember member{std::string(entry.substr(kCentralBytes, name_size)),
                     u32(entry, 42),
                     u32(entry, 20),
                     u32(entry, 24),
                     u16(entry, 8),
                     u16(entry, 10),
                     u32(entry, 16)};
    if (!widen(member, entry.substr(kCentralBytes + name_size, extra_size)))
      fail(path_, "member {}: lacks its zip64 sizes", in_quotes(member.name));
    members_.push_back(std::move(member));
    at += all;
  }
  std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(members_.begin(), members_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != members_.end()) fail(path_, "two members are named {}", in_quotes(twice->name));
}

const ZipMember* ZipFile::find(const std::string& name) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), name,
                                      [](const ZipMember& m, const std::string& n) { return m.name < n; });
  return found == members_.end() || found->name != name ? nullptr : &*found;
}

std::uint64_t ZipFile::stored_at(const ZipMember& member) const {
  const auto complain = [&](const std::string& what) { fail(path_, "member {}: {}", in_quotes(member.name), what); };
  if (member.flags & 1) complain("is encrypted");
  if (member.method != 0) complain(message("is compressed (method {}), expected stored bytes", member.method));
  if (member.packed != member.size) complain("is stored, but its two sizes differ");
  if (file_size_ < kLocalBytes || member.header > file_size_ - kLocalBytes)
    complain("has no header where the directory says");
  std::string local(kLocalBytes, '\0');
  read_at(file_.get(), path_, member.header, local.data(), local.size());
  if (u32(local, 0) != 0x04034b50) complain("has no header where the directory says");
  const std::uint64_t begin = member.header + kLocalBytes + u16(local, 26) + u16(local, 28);
  if (begin > file_size_ || member.size > file_size_ - begin) complain("reaches past the end of the file (cut short?)");
  return begin;
}

std::string ZipFile::read(const ZipMember& member, std::uint64_t limit) const {
  const std::uint64_t begin = stored_at(member);
  const auto complain = [&](const std::string& what) { fail(path_, "member {}: {}", in_quotes(member.name), what); };
  if (member.size > limit) complain(message("{} bytes, allowed at most {}", member.size, limit));
  std::string bytes(member.size, '\0');
  read_at(file_.get(), path_, begin, bytes.data(), bytes.size());
  if (::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != member.crc)
    complain("its checksum (CRC-32) is wrong");
  return bytes;
}

}  // namespace fp8::io
